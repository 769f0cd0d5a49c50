"""Fills the token masks of a step on a few threads, while the forward pass runs.

The engine starts it before the runner computes a plan, or right after where that is done elsewhere; the runner waits for the
masks before it samples. Behind a draft, the matcher walks along the guesses, through a tree of them down and back, and returns.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from branchpoint.constrained.grammar import Matcher, Residue, mask_words
from branchpoint.runtime.plan import Slot, StepPlan, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["MaskFiller", "StepMasks"]


@dataclass(frozen=True, slots=True)
class _Walk:
    """What the fills of one slot came to: the rows that hold, whether the matcher is where it was, what is left to ask."""

    seconds: float
    rows: int
    whole: bool = True
    residue: Residue | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The first row to be masked for a slot; those of its guesses follow."""

    row: int
    slot: Slot
    matcher: Matcher


class StepMasks:
    """The masks of one plan; all but `wait` is whole after it.

    `errors` says whose grammar failed, `seconds` what each sequence's fills took. `usable` holds how many of a slot's drawn rows
    are masked: behind a guess that the grammar refuses there are none. `broken` are sequences whose matcher failed on a guess and
    must be made anew.
    """

    def __init__(self, rows: TokenMask | None, fills: "list[tuple[list[_Wanted], Future[list[_Walk | BaseException]]]]") -> None:
        self.errors: dict[Sequence, BaseException] = {}
        self.seconds: dict[Sequence, float] = {}
        self.usable: dict[Sequence, int] = {}
        self.broken: set[Sequence] = set()
        self._rows = rows
        self._fills = fills

    def wait(self) -> TokenMask | None:
        """All rows, filled: a plan's MaskSource. A row whose grammar failed allows everything."""
        for part, fill in self._fills:
            for wanted, came in zip(part, fill.result(), strict=True):
                sequence = wanted.slot.sequence
                if isinstance(came, BaseException):
                    assert self._rows is not None, "a row was filled that isn't there"
                    self._rows[wanted.row] = -1
                    self.errors[sequence] = came
                    continue
                self.seconds[sequence] = came.seconds
                self.usable[sequence] = came.rows
                sequence.residue = came.residue
                if not came.whole:
                    self.broken.add(sequence)
        self._fills = []
        return self._rows


class MaskFiller:
    """Fills rows for a vocabulary of `size` tokens. `close` ends its threads."""

    def __init__(self, size: int, *, workers: int = 2) -> None:
        self._size = size
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="branchpoint-mask")

    def start(self, plan: StepPlan) -> StepMasks:
        """Begin to fill what `plan` needs: of a slot's rows the last one is sampled, and before it one for each guess.

        A row of a plan that ran ahead, behind which the grammar has forced a token since, draws nothing that counts.
        """
        wanted: list[_Wanted] = []
        row = 0
        for slot in plan.slots:
            row += len(slot.rows)
            if slot.sample and slot.sequence.matcher is not None and slot.first_guess == slot.sequence.num_tokens:
                slot.sequence.residue = None
                wanted.append(_Wanted(row - 1 - len(slot.draft), slot, slot.sequence.matcher))
        if not wanted:
            return StepMasks(None, [])
        rows = np.empty((row, mask_words(self._size)), np.int32)
        whole = np.ones(row, np.bool_)
        whole[[each.row for each in wanted if not each.slot.draft]] = False  # which are filled all over
        rows[whole] = -1
        parts = [wanted[first :: self._workers] for first in range(min(self._workers, len(wanted)))]
        return StepMasks(rows, [(part, self._pool.submit(_fill_all, rows, part)) for part in parts])

    def close(self) -> None:
        """Wait for running fills and end the threads."""
        self._pool.shutdown(wait=True)


def _must_be_exact(slot: Slot) -> bool:
    """Whether which other tokens are allowed changes the chance of the one that is drawn, or guesses follow."""
    return bool(slot.draft) or slot.sequence.sampling.truncates


def _fill_all(rows: TokenMask, part: list[_Wanted]) -> list[_Walk | BaseException]:
    """Mask the rows of one thread; a task for each would cost the engine's thread more than the masks cost this one."""
    came: list[_Walk | BaseException] = []
    for wanted in part:
        try:
            came.append(_fill(rows[wanted.row : wanted.row + len(wanted.slot.draft) + 1], wanted.matcher, wanted.slot))
        except BaseException as error:  # noqa: BLE001  # the boundary of one sequence, a library's panics too
            came.append(error)
    return came


def _fill(rows: TokenMask, matcher: Matcher, slot: Slot) -> _Walk:
    """Mask the first row, and those behind the guesses that the grammar takes. Raises only what the first row's fill raises.

    What is drawn from an exact row is asked about too, since exact rows look less far.
    """
    started = time.perf_counter()
    residue = matcher.fill_loosely(rows[0])
    if residue is not None and _must_be_exact(slot):
        residue.narrow(rows[0])
    if not slot.draft:
        return _Walk(time.perf_counter() - started, 1, residue=residue)
    done = at = 0
    try:
        for guess, depth in zip(slot.draft, slot.depths or range(len(slot.draft)), strict=True):
            if depth < at:
                matcher.rollback(at - depth)
            at = depth
            if matcher.advance((guess,)) != 1:
                break
            at, done = at + 1, done + 1
            matcher.fill(rows[done])
        matcher.rollback(at)
    except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
        rows[max(done, 1) :] = -1
        return _Walk(time.perf_counter() - started, max(done, 1), whole=False)
    return _Walk(time.perf_counter() - started, done + 1, residue=residue)
