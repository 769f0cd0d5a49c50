"""Prompt lookup: what followed the last few tokens when they stood in this text before (Saxena 2023).

The simplest drafter, without memory of other requests; `suffix.py` finds longer matches and remembers.
"""

from collections.abc import Mapping

from branchpoint.runtime.drafting.drafter import Proposal, ask_each
from branchpoint.runtime.sequence import Sequence

__all__ = ["NgramDrafter"]


class NgramDrafter:
    """Looks up the last `longest` tokens, then fewer, down to `shortest`; the latest occurrence counts, with more than one of
    `branches` also earlier ones behind which other tokens stand. See `Drafter`.
    """

    name = "ngram"

    def __init__(self, shortest: int = 2, longest: int = 4, branches: int = 1) -> None:
        assert 1 <= shortest <= longest, f"lengths of n-grams from 1 up, got {shortest} to {longest}"
        self._lengths = range(longest, shortest - 1, -1)
        self._branches = branches
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
        if index is None or index.mistaken != sequence.mistaken:
            index = self._indices[sequence] = _Index(self._lengths, self._branches, sequence.mistaken)
        index.extend(sequence.tokens)
        found = index.follow()
        if found is None:
            return None
        ends, length = found
        line, *others = (tuple(sequence.tokens[end : end + count]) for end in ends)
        return Proposal(line, length).beside((0, other) for other in others)


class _Index:
    """Where each n-gram of a growing text last ended, its very end aside: before each of so many different tokens at most."""

    def __init__(self, lengths: range, branches: int, mistaken: int) -> None:
        self.mistaken = mistaken
        self._lengths = lengths
        self._branches = branches
        self._ends: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._count = 0
        self._tail: tuple[int, ...] = ()

    def extend(self, tokens: list[int]) -> None:
        """Take in what `tokens` have beyond the last time; all n-grams but those that end with them are known then."""
        for end in range(max(self._count, 1), len(tokens)):
            for length in self._lengths:
                if length <= end:
                    gram = tuple(tokens[end - length : end])
                    others = self._ends.get(gram, ()) if self._branches > 1 else ()
                    different = [other for other in others if tokens[other] != tokens[end]]
                    self._ends[gram] = (end, *different[: self._branches - 1])
        self._count = len(tokens)
        self._tail = tuple(tokens[-self._lengths[0] :])

    def follow(self) -> tuple[tuple[int, ...], int] | None:
        """The positions behind occurrences of the longest known tail, the latest first, and the tail's length."""
        for length in self._lengths:
            if length <= len(self._tail):
                ends = self._ends.get(self._tail[-length:])
                if ends is not None:
                    return ends, length
        return None
