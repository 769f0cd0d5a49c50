"""In which order leaves are evicted: what was said to be finished, then by priority, then least recently used.

What is said to come back goes after the rest of its priority: that of the lowest standing first, of equals the latest return. A
leaf that was begun to be cut is finished before, so that whole conversations go and not the tail of each.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from branchpoint.radix.awaited import AwaitedPages
from branchpoint.radix.hints import Standing
from branchpoint.radix.node import Node

__all__ = ["EvictionQueue", "Rank", "rank"]

Rank = tuple[float, int, bool, Standing, float]
"""Sorts what should go first before the rest: priority, class, whole or begun to be cut, who waits, and when within the class."""

FINISHED, PLAIN, AWAITED = range(3)
STALE = 64
NOBODY: Standing = (0, 0)


def rank(node: Node, now: float) -> Rank:
    """Where `node` stands in the order of eviction."""
    hint = node.hint
    if node.busy_until > now:
        return (float("inf"), AWAITED, True, NOBODY, node.last_used)
    if hint is None:
        return (node.priority, PLAIN, not node.cut, NOBODY, node.last_used)
    if hint.last:
        return (float("-inf"), FINISHED, True, NOBODY, node.last_used)
    priority = hint.priority(node.priority, now)
    if hint.is_awaited(now):
        return (priority, AWAITED, not node.cut, hint.standing, -hint.expected)
    return (priority, PLAIN, not node.cut, NOBODY, node.last_used)


class EvictionQueue:
    """Nodes of which eviction can take `num_due` pages, ready to be taken in the order in which they should go. Keeps `awaited`
    up to date, which knows inner nodes too.

    Most are in a list by last use, where entering, using and taking cost the same however many there are. What ranks otherwise,
    or is entered late, is in a heap. A node of which nothing can be taken any longer is left out when it comes up; who makes it
    due again pushes it again.
    """

    def __init__(self, num_due: Callable[[Node], int], awaited: AwaitedPages) -> None:
        self.awaited = awaited
        self._num_due = num_due
        self._by_use: OrderedDict[Node, None] = OrderedDict()  # plain ones of priority 0, by `last_used`
        self._heap: list[tuple[Rank, int, Node]] = []
        self._timers: list[tuple[float, int, Node]] = []  # when a hint ends and its node falls back
        self._tickets: dict[Node, int] = {}  # of nodes in the heap; entries with another ticket are stale
        self._count = count()

    def __len__(self) -> int:
        return len(self._by_use) + len(self._tickets)

    def __contains__(self, node: Node) -> bool:
        return node in self._by_use or node in self._tickets

    def push(self, node: Node, now: float) -> None:
        """Enter a node; one that is entered already stays where it is."""
        if node not in self and self._num_due(node):
            self._enter(node, now)

    def used(self, node: Node) -> None:
        """`node` was used just now, later than any other."""
        if node in self._by_use:
            self._by_use.move_to_end(node)

    def again(self, node: Node, now: float) -> None:
        """What was said about `node`, or what it has, has changed: move it, if it is entered."""
        if node in self:
            self._take(node)
            self._enter(node, now)
        else:
            self.awaited.note(node, now)

    def discard(self, node: Node) -> None:
        """`node` leaves the tree."""
        self._take(node)
        self.awaited.drop(node)

    def pop(self, now: float, limit: Rank | None = None) -> Node | None:
        """Take the node that should go first; None when there is none, or it ranks behind `limit`."""
        self._let_expire(now)
        top = self._top(now)  # first, since it may enter others by use
        first = self._first_by_use()
        place = rank(first, now) if first else None
        if top and (place is None or top[0] < place):
            place, first = top[0], top[2]
        if first is None or (limit is not None and place is not None and place > limit):
            return None
        self._take(first)
        return first

    def clear(self) -> None:
        """Forget all."""
        self._by_use.clear()
        self._heap.clear()
        self._timers.clear()
        self._tickets.clear()
        self.awaited.clear()

    def _take(self, node: Node) -> None:
        self._by_use.pop(node, None)
        self._tickets.pop(node, None)

    def _let_expire(self, now: float) -> None:
        """Put nodes whose hints have ended where they belong without."""
        while self._timers and self._timers[0][0] <= now:
            _, ticket, node = heapq.heappop(self._timers)
            if self._tickets.get(node) == ticket:
                self._enter(node, now)

    def _first_by_use(self) -> Node | None:
        while self._by_use:
            node = next(iter(self._by_use))
            if self._num_due(node):
                return node
            del self._by_use[node]
        return None

    def _top(self, now: float) -> tuple[Rank, int, Node] | None:
        """The first entry of the heap that is still true; those used since their entry move to where they belong."""
        while self._heap:
            noted, ticket, node = entry = self._heap[0]
            if self._tickets.get(node) == ticket:
                if self._num_due(node):
                    if noted == rank(node, now):
                        return entry
                    heapq.heappop(self._heap)
                    self._enter(node, now)
                    continue
                self._take(node)
            heapq.heappop(self._heap)
        return None

    def _enter(self, node: Node, now: float) -> None:
        self.awaited.note(node, now)
        busy = node.busy_until > now
        if node.hint is None and not node.cut and not busy and node.priority == 0:
            last = next(reversed(self._by_use), None)
            if last is None or last.last_used <= node.last_used:
                self._tickets.pop(node, None)
                self._by_use[node] = None
                return
        ticket = self._tickets[node] = next(self._count)
        heapq.heappush(self._heap, (rank(node, now), ticket, node))
        change = node.busy_until if busy else node.hint.changes(now) if node.hint else None
        if change is not None:
            heapq.heappush(self._timers, (change, ticket, node))
        if len(self._heap) + len(self._timers) > 3 * len(self._tickets) + STALE:
            self._sweep()

    def _sweep(self) -> None:
        """Take out stale entries."""
        self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]
        self._timers = [entry for entry in self._timers if self._tickets.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
        heapq.heapify(self._timers)
