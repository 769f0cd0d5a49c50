"""Fills the token masks of a step on a few threads, while the forward pass runs.

The engine starts it before it hands a plan to the runner; the runner waits for the masks before it samples. Behind a draft, the
matcher walks along the guesses and comes back.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from branchpoint.constrained.grammar import Matcher, Residue
from branchpoint.constrained.mask import allocate
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


class StepMasks:
    """The masks of one plan; all but `wait` is whole after it.

    `errors` says whose grammar failed, `seconds` what each sequence's fills took. `usable` holds how many of a slot's drawn rows
    are masked: behind a guess that the grammar refuses there are none. `broken` are sequences whose matcher failed on a guess and
    must be made anew.
    """

    def __init__(self, rows: TokenMask | None, fills: list[tuple[int, Sequence, "Future[_Walk]"]]) -> None:
        self.errors: dict[Sequence, BaseException] = {}
        self.seconds: dict[Sequence, float] = {}
        self.usable: dict[Sequence, int] = {}
        self.broken: set[Sequence] = set()
        self._rows = rows
        self._fills = fills

    def wait(self) -> TokenMask | None:
        """All rows, filled: a plan's MaskSource. A row whose grammar failed allows everything."""
        for row, sequence, fill in self._fills:
            error = fill.exception()
            if error is not None:
                assert self._rows is not None, "a row was filled that isn't there"
                self._rows[row] = -1
                self.errors[sequence] = error
                continue
            walk = fill.result()
            self.seconds[sequence] = walk.seconds
            self.usable[sequence] = walk.rows
            sequence.residue = walk.residue
            if not walk.whole:
                self.broken.add(sequence)
        self._fills = []
        return self._rows


class MaskFiller:
    """Fills rows for a vocabulary of `size` tokens. `close` ends its threads."""

    def __init__(self, size: int, *, workers: int = 2) -> None:
        self._size = size
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="branchpoint-mask")

    def start(self, plan: StepPlan) -> StepMasks:
        """Begin to fill what `plan` needs: of a slot's rows the last one is sampled, and before it one for each guess."""
        wanted: list[tuple[int, Slot, Matcher]] = []
        row = 0
        for slot in plan.slots:
            row += len(slot.rows)
            if slot.sample and slot.sequence.matcher is not None:
                wanted.append((row - 1 - len(slot.draft), slot, slot.sequence.matcher))
        if not wanted:
            return StepMasks(None, [])
        rows = allocate(row, self._size)
        rows[:] = -1
        fills = []
        for first, slot, matcher in wanted:
            slot.sequence.residue = None
            part = rows[first : first + len(slot.draft) + 1]
            fills.append((first, slot.sequence, self._pool.submit(_fill, part, matcher, slot)))
        return StepMasks(rows, fills)

    def close(self) -> None:
        """Wait for running fills and end the threads."""
        self._pool.shutdown(wait=True)


def _may_ask(slot: Slot) -> bool:
    """Whether a token can be drawn first and asked about then: where which others are allowed doesn't change its chance."""
    sampling = slot.sequence.sampling
    return not slot.draft and not sampling.truncates and slot.sequence.num_output >= sampling.min_tokens


def _fill(rows: TokenMask, matcher: Matcher, slot: Slot) -> _Walk:
    """Mask the first row, and those behind the guesses that the grammar takes. Raises only what the first row's fill raises."""
    started = time.perf_counter()
    if _may_ask(slot):
        residue = matcher.fill_loosely(rows[0])
        return _Walk(time.perf_counter() - started, 1, residue=residue)
    matcher.fill(rows[0])
    done = 0
    try:
        for guess in slot.draft:
            if matcher.advance((guess,)) != 1:
                break
            done += 1
            matcher.fill(rows[done])
        matcher.rollback(done)
    except Exception:  # noqa: BLE001  # the boundary of a guess: where it leads says nothing about the sequence itself
        rows[max(done, 1) :] = -1
        return _Walk(time.perf_counter() - started, max(done, 1), whole=False)
    return _Walk(time.perf_counter() - started, done + 1)
