"""A step that a runner has been given: what the engine keeps until it has landed.

Where the runner can run ahead, the engine gives it the next step before it waits for this one, so that a GPU need not wait for
the host. Then `StepPlan.sources` says which tokens are still to come.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from branchpoint.runtime.errors import DeviceLost, RuntimeFailure
from branchpoint.runtime.masks import StepMasks
from branchpoint.runtime.plan import MaskSource, Runner, StepPlan, StepResult, StepUnderWay

__all__ = ["AheadRunner", "Flight", "take_off"]

T = TypeVar("T")


@runtime_checkable
class AheadRunner(Runner, Protocol):
    """A runner that takes a step while another one is under way."""

    runs_ahead: bool

    def begin(self, plan: StepPlan, masks: MaskSource, before: StepUnderWay | None = None) -> StepUnderWay:
        """Start a step; one with sources comes behind `before`, which is not finished yet. Raises as `Runner.execute` does."""


@dataclass(frozen=True, slots=True)
class Flight:
    """`since` is when it began, in the engine's seconds; `under_way` is None where the runner computes it only when it lands."""

    plan: StepPlan
    masks: StepMasks
    since: float
    under_way: StepUnderWay | None
    finish: Callable[[], StepResult]

    def land(self) -> StepResult | RuntimeFailure:
        """Wait for what the step gives, or why it failed. Raises DeviceLost where nothing can be computed any more."""
        outcome = _guarded(self.finish)
        self.masks.wait()
        return outcome


def take_off(runner: Runner, plan: StepPlan, masks: StepMasks, since: float, before: Flight | None) -> Flight:
    """Give the runner a step. Raises DeviceLost; other failures come when the flight lands."""
    if not isinstance(runner, AheadRunner) or not runner.runs_ahead:
        return Flight(plan, masks, since, None, lambda: runner.execute(plan, masks.wait))
    begun = _guarded(lambda: runner.begin(plan, masks.wait, before.under_way if before else None))
    if isinstance(begun, RuntimeFailure):
        return Flight(plan, masks, since, None, lambda: _raise(begun))
    return Flight(plan, masks, since, begun, begun.finish)


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


def _raise(failure: RuntimeFailure) -> StepResult:
    raise failure
