"""The rows of a step that are pooled, told apart from those whose logits are wanted. Used by the runner, where there are some."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.plan import RowResult
from branchpoint.runtime.transfer import Fetch, send

__all__ = ["Pooled"]

_UNUSABLE = RowResult(None, error="The model's logits are unusable: its hidden states aren't finite.")


class Pooled:
    """Splits `rows` and their hidden states [R, hidden_size].

    `rows` and `hidden` are what is left to be sampled, `kept` their places; `merged` puts their results and the sums together.
    """

    def __init__(self, rows: Sequence[WantedRow], hidden: Tensor) -> None:
        self.kept = [place for place, row in enumerate(rows) if not row.sequence.pooled]
        self.rows = [rows[place] for place in self.kept]
        (self._at,) = send([np.array(self.kept, np.int64)], hidden.device)
        self.hidden = hidden.index_select(0, self._at)
        self._count = len(rows)
        self._ends, sums = _sums(rows, hidden)
        self._sums = Fetch([torch.stack(sums)])

    def spread(self, tokens: Tensor) -> Tensor:
        """What is drawn of `rows`, int64, as one of all rows; the pooled ones have 0."""
        return tokens.new_zeros(self._count).index_copy_(0, self._at, tokens)

    def merged(self, results: Sequence[RowResult]) -> list[RowResult]:
        """The results of all rows; `results` are those of `rows`."""
        ready = [RowResult(None)] * self._count
        for place, result in zip(self.kept, results, strict=True):
            ready[place] = result
        for place, total in zip(self._ends, *self._sums.wait(), strict=True):
            ready[place] = RowResult(None, hidden=total) if np.isfinite(total).all() else _UNUSABLE
        return ready


def _sums(rows: Sequence[WantedRow], hidden: Tensor) -> tuple[list[int], list[Tensor]]:
    """For each pooled sequence the place of its last row, and the sum of its rows, float32 [hidden_size]."""
    ends, sums = [], []
    for sequence, group in groupby(enumerate(rows), key=lambda each: each[1].sequence):
        places = [place for place, _ in group]
        if sequence.pooled:
            ends.append(places[-1])
            sums.append(hidden[places[0] : places[-1] + 1].float().sum(0))
    return ends, sums
