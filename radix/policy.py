"""In which order leaves are evicted: lowest priority first, then least recently used.

A heap with one entry for each leaf. A leaf that was used since its entry was made is put back when it comes up, so that a
match costs the heap nothing.
"""

import heapq
from itertools import count

from branchpoint.radix.node import Node

__all__ = ["EvictionQueue"]


class EvictionQueue:
    """The leaves of a tree, ready to be taken in the order in which they should go."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Node]] = []
        self._ticket = count()

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: Node) -> None:
        """Enter a leaf; one that is entered already stays where it is."""
        if not node.queued:
            node.queued = True
            heapq.heappush(self._heap, (node.priority, node.last_used, next(self._ticket), node))

    def pop(self) -> Node | None:
        """Take the leaf that should go first; None when there is none."""
        while self._heap:
            priority, last_used, _, node = heapq.heappop(self._heap)
            node.queued = False
            if node.children:
                continue  # an inner node by now; the tree enters it again when its last child goes
            if (priority, last_used) == (node.priority, node.last_used):
                return node
            self.push(node)
        return None

    def clear(self) -> None:
        """Forget all leaves."""
        self._heap.clear()
