"""Fills the token masks of a step on a few threads, while the forward pass runs.

The engine starts it before it hands a plan to the runner; the runner waits for the masks before it samples.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from branchpoint.constrained.grammar import MaskRow, Matcher, mask_words
from branchpoint.runtime.plan import StepPlan, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["MaskFiller", "StepMasks"]


class StepMasks:
    """The masks of one plan. `errors` says whose grammar failed, `seconds` what each fill took; both are whole after `wait`."""

    def __init__(self, rows: TokenMask | None, fills: list[tuple[int, Sequence, "Future[float]"]]) -> None:
        self.errors: dict[Sequence, BaseException] = {}
        self.seconds: dict[Sequence, float] = {}
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
            else:
                self.seconds[sequence] = fill.result()
        self._fills = []
        return self._rows


class MaskFiller:
    """Fills rows for a vocabulary of `size` tokens. `close` ends its threads."""

    def __init__(self, size: int, *, workers: int = 2) -> None:
        self._words = mask_words(size)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="branchpoint-mask")

    def start(self, plan: StepPlan) -> StepMasks:
        """Begin to fill what `plan` needs. Only rows that are sampled are masked."""
        wanted: list[tuple[int, Sequence, Matcher]] = []
        row = 0
        for slot in plan.slots:
            row += len(slot.rows)
            if slot.sample and slot.sequence.matcher is not None:
                wanted.append((row - 1, slot.sequence, slot.sequence.matcher))  # of a slot's rows the last one is sampled
        if not wanted:
            return StepMasks(None, [])
        rows = np.full((row, self._words), -1, dtype=np.int32)
        fills = [(index, sequence, self._pool.submit(_fill, rows[index], matcher)) for index, sequence, matcher in wanted]
        return StepMasks(rows, fills)

    def close(self) -> None:
        """Wait for running fills and end the threads."""
        self._pool.shutdown(wait=True)


def _fill(row: MaskRow, matcher: Matcher) -> float:
    started = time.perf_counter()
    matcher.fill(row)
    return time.perf_counter() - started
