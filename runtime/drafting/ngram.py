"""Prompt lookup: what followed the last few tokens when they stood in this text before (Saxena 2023).

The simplest drafter, without memory of other requests; `suffix.py` finds longer matches and remembers.
"""

from collections.abc import Mapping

from branchpoint.runtime.drafting.drafter import Proposal, ask_each
from branchpoint.runtime.sequence import Sequence

__all__ = ["NgramDrafter"]


class NgramDrafter:
    """Looks up the last `longest` tokens, then fewer, down to `shortest`; the latest occurrence counts. See `Drafter`."""

    name = "ngram"

    def __init__(self, shortest: int = 2, longest: int = 4) -> None:
        assert 1 <= shortest <= longest, f"lengths of n-grams from 1 up, got {shortest} to {longest}"
        self._lengths = range(longest, shortest - 1, -1)
        self._indices: dict[Sequence, _Index] = {}

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`. The grade is the matched length."""
        return ask_each(wanted, self._propose)

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""
        self._indices.pop(sequence, None)

    def close(self) -> None:
        """See `Drafter`."""
        self._indices.clear()

    def _propose(self, sequence: Sequence, count: int) -> Proposal | None:
        index = self._indices.get(sequence)
        if index is None:
            index = self._indices[sequence] = _Index(self._lengths)
        index.extend(sequence.tokens)
        found = index.follow()
        return None if found is None else Proposal(tuple(sequence.tokens[found[0] : found[0] + count]), found[1])


class _Index:
    """Where each n-gram of a growing text last ended, its very end aside."""

    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._ends: dict[tuple[int, ...], int] = {}
        self._count = 0
        self._tail: tuple[int, ...] = ()

    def extend(self, tokens: list[int]) -> None:
        """Take in what `tokens` have beyond the last time; all n-grams but those that end with them are known then."""
        for end in range(max(self._count, 1), len(tokens)):
            for length in self._lengths:
                if length <= end:
                    self._ends[tuple(tokens[end - length : end])] = end
        self._count = len(tokens)
        self._tail = tuple(tokens[-self._lengths[0] :])

    def follow(self) -> tuple[int, int] | None:
        """The position behind the latest occurrence of the longest known tail, and the tail's length."""
        for length in self._lengths:
            if length <= len(self._tail):
                end = self._ends.get(self._tail[-length:])
                if end is not None:
                    return end, length
        return None
