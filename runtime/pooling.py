"""A call that asks for one vector of its whole prompt: collects the hidden states that the runner sums over each step.

Its prompt is followed by a token that is never computed, so that every position of the prompt has a row. See `scoring.py`.
"""

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from branchpoint.runtime.generation import Finish
from branchpoint.runtime.plan import RowResult, Slot
from branchpoint.runtime.scoring import ScoreTrie, Scoring
from branchpoint.runtime.sequence import Sequence

__all__ = ["Pooling"]


class Pooling(Scoring):
    """The mean of the hidden states of all rows that are wanted of `sequence`: of every token, or of the last one alone."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence, ScoreTrie(()), ())
        self._sum: npt.NDArray[np.float32] | None = None
        self._count = 0

    def commit(self, slot: Slot, rows: Seq[RowResult]) -> Finish | None:
        """Take in the rows of `slot`, of which the last has their sum; a Finish once the whole prompt was computed."""
        if rows:
            hidden = rows[-1].hidden
            assert hidden is not None, f"the pooled rows at {slot.start} came back without their hidden states"
            self._sum = hidden if self._sum is None else self._sum + hidden
            self._count += len(rows)
        return Finish("length") if self.sequence.num_computed >= self.sequence.target else None

    @property
    def vector(self) -> tuple[float, ...]:
        """The mean so far, of at least one row."""
        assert self._sum is not None, "a call that has ended has had its rows"
        return tuple((self._sum / self._count).tolist())
