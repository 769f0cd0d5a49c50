"""Fills the token masks of a step on a few threads, while the forward pass runs.

The engine starts it before it hands a plan to the runner; the runner waits for the masks before it samples. Grammars say which
tokens may come; the tokens that end a text are taken out until `min_tokens` are there.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from branchpoint.constrained.grammar import MaskRow, mask_words
from branchpoint.runtime.plan import Slot, StepPlan, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["MaskFiller", "StepMasks"]


class StepMasks:
    """The masks of one plan. `errors` says whose grammar failed, `seconds` what each fill took; both are whole after `wait`."""

    def __init__(self, rows: TokenMask | None, fills: list[tuple[Sequence, "Future[float]"]]) -> None:
        self.errors: dict[Sequence, BaseException] = {}
        self.seconds: dict[Sequence, float] = {}
        self._rows = rows
        self._fills = fills

    def wait(self) -> TokenMask | None:
        """All rows, filled: a plan's MaskSource. A row whose grammar failed allows everything."""
        for sequence, fill in self._fills:
            error = fill.exception()
            if error is not None:
                self.errors[sequence] = error
            else:
                self.seconds[sequence] = fill.result()
        self._fills = []
        return self._rows


class MaskFiller:
    """Fills rows for a vocabulary of `size` tokens, of which `eos` end a text. `close` ends its threads."""

    def __init__(self, size: int, eos: frozenset[int], *, workers: int = 2) -> None:
        self._words = mask_words(size)
        self._eos = eos
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="branchpoint-mask")

    def start(self, plan: StepPlan) -> StepMasks:
        """Begin to fill what `plan` needs. Only rows that are sampled are masked."""
        wanted: list[tuple[int, Slot]] = []
        row = 0
        for slot in plan.slots:
            row += len(slot.rows)
            if slot.sample and self._is_masked(slot.sequence):
                wanted.append((row - 1, slot))  # the last row of a slot is the one that is sampled
        if not wanted:
            return StepMasks(None, [])
        rows = np.full((row, self._words), -1, dtype=np.int32)
        fills = [(slot.sequence, self._pool.submit(self._fill, rows[index], slot.sequence)) for index, slot in wanted]
        return StepMasks(rows, fills)

    def close(self) -> None:
        """Wait for running fills and end the threads."""
        self._pool.shutdown(wait=True)

    def _is_masked(self, sequence: Sequence) -> bool:
        return sequence.matcher is not None or sequence.num_output < sequence.sampling.min_tokens

    def _fill(self, row: MaskRow, sequence: Sequence) -> float:
        started = time.perf_counter()
        try:
            if sequence.matcher is not None:
                sequence.matcher.fill(row)
            if sequence.num_output < sequence.sampling.min_tokens:
                self._hold_open(row, sequence)
        except BaseException:
            row[:] = -1
            raise
        return time.perf_counter() - started

    def _hold_open(self, row: MaskRow, sequence: Sequence) -> None:
        """Take out what would end the output, unless nothing else is left: a grammar's end wins over `min_tokens`."""
        open_row = row.copy()
        for token in self._eos.union(sequence.sampling.stop_token_ids):
            open_row.view(np.uint32)[token // 32] &= np.uint32(~(1 << (token % 32)) & 0xFFFFFFFF)
        if open_row.any():
            row[:] = open_row
