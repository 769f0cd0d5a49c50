"""How many pages pins may cover together, so that none of them can keep all others out of the cache.

Asked by `RadixTree.pin`; a pin counts with all pages of its prefix until its time is over, shared ones once for each pin.
"""

import heapq
from itertools import count

from branchpoint.radix.node import Node

__all__ = ["PinBudget"]


class PinBudget:
    """`num_pages` pages to be pinned, each pin known by the node on which it lies."""

    def __init__(self, num_pages: int) -> None:
        self._left = num_pages
        self._pins: dict[Node, tuple[int, float]] = {}
        self._ends: list[tuple[float, int, Node]] = []
        self._count = count()

    def take(self, node: Node, pages: int, until: float, now: float) -> bool:
        """Let a pin on `node` cover `pages` until then, in place of an earlier one on it; False where too few are left."""
        while self._ends and self._ends[0][0] <= now:
            end, _, gone = heapq.heappop(self._ends)
            if gone in self._pins and self._pins[gone][1] <= end:
                self.give_back(gone)
        before, end = self._pins.get(node, (0, until))
        if pages - before > self._left:
            return False
        self._left -= pages - before
        self._pins[node] = (pages, max(until, end))
        heapq.heappush(self._ends, (max(until, end), next(self._count), node))
        return True

    def give_back(self, node: Node) -> None:
        """The pin on `node` is over."""
        pages, _ = self._pins.pop(node, (0, 0.0))
        self._left += pages

    def clear(self) -> None:
        """All pins are over."""
        self._left += sum(pages for pages, _ in self._pins.values())
        self._pins.clear()
        self._ends.clear()
