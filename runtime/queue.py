"""Sequences in the order of a key, kept sorted while they come and go: what waits, for `policy.py`.

Entering and leaving cost a search and a move of memory, so that ten thousand of them can wait.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from branchpoint.runtime.sequence import Sequence

__all__ = ["SequenceQueue"]

Key = tuple[int, ...]


class SequenceQueue:
    """Sequences by keys, of which no two may be alike."""

    def __init__(self) -> None:
        self._entries: list[tuple[Key, Sequence]] = []
        self._keys: dict[Sequence, Key] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._keys

    def __iter__(self) -> Iterator[Sequence]:
        """In order; all that is here now, whatever comes or goes meanwhile."""
        return iter([sequence for _, sequence in self._entries])

    @property
    def first(self) -> Sequence | None:
        """The one with the lowest key."""
        return self._entries[0][1] if self._entries else None

    def entries(self) -> list[tuple[Key, Sequence]]:
        """All with their keys, in order."""
        return self._entries.copy()

    def put(self, sequence: Sequence, key: Key) -> None:
        """Enter `sequence`, or move it to where `key` belongs."""
        if self._keys.get(sequence) != key:
            self.discard(sequence)
            self._keys[sequence] = key
            insort(self._entries, (key, sequence))

    def discard(self, sequence: Sequence) -> None:
        """Take it out, if it is here."""
        key = self._keys.pop(sequence, None)
        if key is not None:
            del self._entries[bisect_left(self._entries, (key,))]
