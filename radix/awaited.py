"""How many pages hold stretches whose return is awaited, and for whom: what the runtime leaves alone for those who came before.

Kept by `EvictionQueue` for the nodes in it, read through `RadixTree.num_awaited`.
"""

from bisect import bisect_left, bisect_right

from branchpoint.radix.hints import Standing
from branchpoint.radix.node import Node

__all__ = ["AwaitedPages"]


class AwaitedPages:
    """Pages by standing. Coming, going and asking cost a search and a move of memory."""

    def __init__(self) -> None:
        self._entries: list[tuple[Standing, int]] = []  # standing and pages, in order
        self._pages: list[int] = []  # those of `_entries`, so that they are summed quickly
        self._known: dict[Node, tuple[Standing, int]] = {}

    def put(self, node: Node, standing: Standing, pages: int) -> None:
        """`pages` of `node` are awaited, in place of what was noted of it before."""
        self.drop(node)
        entry = self._known[node] = (standing, pages)
        at = bisect_right(self._entries, entry)
        self._entries.insert(at, entry)
        self._pages.insert(at, pages)

    def drop(self, node: Node) -> None:
        """Nothing of `node` is awaited."""
        entry = self._known.pop(node, None)
        if entry is not None:
            at = bisect_left(self._entries, entry)
            del self._entries[at], self._pages[at]

    def above(self, standing: Standing | None) -> int:
        """Pages that are awaited with more than this standing; all of them where None is given."""
        return sum(self._pages[bisect_right(self._entries, standing, key=_standing) if standing else 0 :])

    def clear(self) -> None:
        """Nothing is awaited any more."""
        self._entries.clear()
        self._pages.clear()
        self._known.clear()


def _standing(entry: tuple[Standing, int]) -> Standing:
    return entry[0]
