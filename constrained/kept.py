"""The grammars that a compiler keeps: those asked for last, within a number and a total length of what they were asked by.

Used by `compiler.py` under its lock. How large a compiled grammar is nobody tells; it grows with its text, by some tens of times.
"""

import time
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Kept"]

Made = TypeVar("Made")


@dataclass(slots=True)
class _Entry(Generic[Made]):
    future: "Future[Made]"
    length: int
    expires: float | None = None


class Kept(Generic[Made]):
    """Futures by key, at most `most` of them with `longest` characters in all. The newest is kept however long it is."""

    def __init__(self, most: int, longest: int) -> None:
        self._most = most
        self._longest = longest
        self._length = 0
        self._entries: OrderedDict[Hashable, _Entry[Made]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable) -> "Future[Made] | None":
        """What is kept under a key and hasn't expired; it counts as asked for."""
        entry = self._entries.get(key)
        if entry is None or (entry.expires is not None and time.monotonic() >= entry.expires):
            return None
        self._entries.move_to_end(key)
        return entry.future

    def keep(self, key: Hashable, future: "Future[Made]", length: int) -> None:
        """Keep a future that stands for so many characters, and let go what is too much."""
        self._drop(key)
        self._entries[key] = _Entry(future, length)
        self._length += length
        while len(self._entries) > 1 and (len(self._entries) > self._most or self._length > self._longest):
            self._drop(next(iter(self._entries)))

    def expire(self, key: Hashable, future: "Future[Made]", seconds: float) -> None:
        """If this future is kept, keep it for so long only."""
        entry = self._entries.get(key)
        if entry is not None and entry.future is future:
            entry.expires = time.monotonic() + seconds

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        self._length -= entry.length if entry is not None else 0
