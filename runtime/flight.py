"""A step that a runner has been given: what the engine keeps until it has landed.

Where the runner can run ahead, the engine launches the next step before it waits for this one, so that a GPU need not wait for
the host, and a step that verifies guesses before it waits for these. Then `StepPlan.sources` says which tokens are still to come;
masks and penalties that hang on them are made meanwhile.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard, TypeVar, runtime_checkable

from branchpoint.runtime.errors import DeviceLost, RuntimeFailure
from branchpoint.runtime.masks import MaskFiller, StepMasks
from branchpoint.runtime.plan import RowResult, Runner, Slot, StepPlan, StepResult, StepUnderWay, asked
from branchpoint.runtime.sequence import Sequence, Status

__all__ = ["AheadRunner", "Flight", "runs_ahead", "take_off"]

T = TypeVar("T")


@runtime_checkable
class AheadRunner(Runner, Protocol):
    """A runner that takes a step while another one is under way."""

    runs_ahead: bool

    def launch(self, plan: StepPlan, *before: StepUnderWay) -> StepUnderWay:
        """Start a step's forward pass; one with sources comes behind the steps `before`, which draw and aren't finished yet:
        sources number their rows through. Raises as `Runner.execute` does.
        """


def runs_ahead(runner: Runner | None) -> TypeGuard[AheadRunner]:
    """Whether this is a runner that takes a step while another one is under way."""
    return isinstance(runner, AheadRunner) and runner.runs_ahead


@dataclass(slots=True, eq=False)
class Flight:
    """`since` is when it began, in the engine's seconds; `under_way` is None where the runner computes it only when it lands.

    Where it `waits`, it is still to draw. What it computes of `void` sequences is lost: the token that it took for
    their last one was replaced when it was known. Of a step that was launched before tokens were taken in, `foreseen` are those
    that each slot computes, without its guesses.
    """

    plan: StepPlan
    since: float
    masks: StepMasks
    finish: Callable[[], StepResult]
    under_way: StepUnderWay | None = None
    waits: bool = False
    void: set[Sequence] = field(default_factory=set)
    foreseen: dict[Sequence, list[int]] = field(default_factory=dict)

    def draw(self, filler: MaskFiller) -> None:
        """Let a step that was launched ahead draw, if it waits, now that what its masks and penalties hang on is known."""
        self._look_back()
        if self.waits and self.under_way is not None:
            self.waits, self.masks = False, filler.start(self.plan)
            self._draw(self.under_way, self.masks)

    def land(self, ahead: "Flight | None") -> StepResult | RuntimeFailure:
        """Wait for what the step gives, or why it failed; of both `plan` and this only what counts is left. Where a token was
        replaced, the flight `ahead` has another one. Where there is none, only those are asked about whose guess may yet be
        right, since its KV is not to be lost. Raises DeviceLost where nothing can be computed any more.
        """
        outcome = _guarded(self._finish)
        self.masks.wait()
        if isinstance(outcome, RuntimeFailure):
            return outcome
        came = [(slot, rows) for slot, rows in zip(self.plan.slots, outcome.rows, strict=True) if slot.sequence not in self.void]
        self.plan = replace(self.plan, slots=tuple(slot for slot, _ in came), sources=())
        result = replace(
            outcome, rows=tuple(rows if ahead is None and not _is_wrong(slot, rows) else asked(rows) for slot, rows in came)
        )
        if ahead is not None:
            replaced = (any(row.replaced for row in rows) for rows in result.rows)
            ahead.void.update(slot.sequence for slot, is_other in zip(self.plan.slots, replaced, strict=True) if is_other)
        return result

    def _finish(self) -> StepResult:
        """What the step gives, which is known at once with the guesses that it verifies."""
        result = self.finish()
        self.plan = self.plan.guessed()
        return result

    def _look_back(self) -> None:
        """Tokens have been taken in since it was launched: sequences of which it computes other ones are void."""
        for slot in self.plan.slots if self.foreseen else ():
            sequence = slot.sequence
            own = sequence.tokens[slot.start : slot.first_guess]
            if sequence.status is Status.RUNNING and (slot.start != sequence.num_computed or own != self.foreseen[sequence]):
                sequence.mistaken += 1
                self.void.add(sequence)

    def _draw(self, step: StepUnderWay, masks: StepMasks) -> None:
        failed = _guarded(lambda: step.draw(masks.wait))
        if failed is not None:
            self.under_way, self.finish = None, lambda: _raise(failed)


def take_off(
    runner: Runner, plan: StepPlan, filler: MaskFiller, since: float, before: Flight | None, *, early: bool = False
) -> Flight:
    """Give the runner a step. Raises DeviceLost; other failures come when the flight lands.

    Behind the flight `before`, a step in which a grammar or penalties look back can only draw when that has landed; where it is
    `early`, when the tokens before it are taken in; others do at once.
    """
    if not runs_ahead(runner):
        masks = filler.start(plan)
        return Flight(plan, since, masks, lambda: runner.execute(plan, masks.wait))
    foreseen = {slot.sequence: slot.tokens[: slot.first_guess - slot.start] for slot in plan.slots} if early else {}
    waits = (before is not None or early) and any(slot.sample and slot.sequence.looks_back for slot in plan.slots)
    steps = plan.guesses.steps if plan.guesses else (before.under_way,) if before and before.under_way else ()
    step = _guarded(lambda: runner.launch(plan, *steps))  # first: the device waits for nothing else
    if isinstance(step, RuntimeFailure):
        return Flight(plan, since, StepMasks(None, []), lambda: _raise(step))
    flight = Flight(plan, since, StepMasks(None, []), step.finish, step, waits=True, foreseen=foreseen)
    if not waits:
        flight.draw(filler)
    return flight


def _guarded(compute: Callable[[], T]) -> T | RuntimeFailure:
    """What it computes, or why it could not."""
    try:
        return compute()
    except RuntimeFailure as failure:
        if isinstance(failure, DeviceLost):
            raise  # the host of the engine tells all callers
        return failure
    except Exception as error:  # noqa: BLE001  # the boundary of one step: a fault costs the calls in it, not the engine
        return RuntimeFailure(f"The forward pass failed: {type(error).__name__}: {str(error)[:500]}")


def _is_wrong(slot: Slot, rows: Many[RowResult]) -> bool:
    """Whether the first guess of a slot isn't what was drawn."""
    return bool(slot.draft) and rows[-1 - len(slot.draft)].token != slot.draft[0]


def _raise(failure: RuntimeFailure) -> StepResult:
    raise failure
