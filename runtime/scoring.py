"""One continuation of a call that only scores: collects the log-probability of each of its tokens.

The engine makes one for each continuation; nothing is sampled. Its sibling for calls that generate is `generation.py`.
"""

from collections.abc import Sequence as Seq

from branchpoint.runtime.generation import Finish
from branchpoint.runtime.plan import RowResult, Slot
from branchpoint.runtime.sequence import Sequence

__all__ = ["Scoring"]


class Scoring:
    """`sequence` is the prompt and one continuation, as output that is complete from the start."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.logprobs: list[float] = []

    def commit(self, slot: Slot, rows: Seq[RowResult]) -> Finish | None:
        """Take in the rows of `slot`; a Finish once every token has its log-probability."""
        for row in rows:
            assert row.known is not None, f"a scored row at {slot.start} came back without its log-probability"
            self.logprobs.append(row.known)
        return Finish("length") if self.sequence.num_computed >= self.sequence.target else None
