"""The rows of a step that are pooled, told apart from those whose logits are wanted. Used by the runner, where there are some."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.plan import RowResult

__all__ = ["Pooled"]

_UNUSABLE = RowResult(None, error="The model's logits are unusable: its hidden states aren't finite.")


class Pooled:
    """Splits `rows` and their hidden states [R, hidden_size].

    `rows` and `hidden` are what is left to be sampled, `kept` their places; `merged` puts their results and the sums together.
    """

    def __init__(self, rows: Sequence[WantedRow], hidden: Tensor) -> None:
        self.kept = [place for place, row in enumerate(rows) if not row.sequence.pooled]
        self.rows = [rows[place] for place in self.kept]
        self.hidden = hidden[self.kept] if self.kept else hidden[:0]
        self._count = len(rows)
        self._sums = dict(_sums(rows, hidden))

    def merged(self, results: Sequence[RowResult]) -> list[RowResult]:
        """The results of all rows; `results` are those of `rows`."""
        ready = [RowResult(None)] * self._count
        for place, result in [*zip(self.kept, results, strict=True), *self._sums.items()]:
            ready[place] = result
        return ready


def _sums(rows: Sequence[WantedRow], hidden: Tensor) -> Iterator[tuple[int, RowResult]]:
    """For each pooled sequence the place of its last row, and the sum of its rows."""
    for sequence, group in groupby(enumerate(rows), key=lambda each: each[1].sequence):
        places = [place for place, _ in group]
        if sequence.pooled:
            total = hidden[places[0] : places[-1] + 1].float().sum(0)
            usable = bool(torch.isfinite(total).all())
            yield places[-1], RowResult(None, hidden=total.cpu().numpy()) if usable else _UNUSABLE
