"""How many pages hold stretches whose return is awaited, and for whom: what the runtime leaves alone for those who came before.

Told by `EvictionQueue` whenever something changes about a node, read through `RadixTree.num_awaited`.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from itertools import count

from branchpoint.radix.hints import Standing
from branchpoint.radix.node import Node

__all__ = ["AwaitedPages"]

STALE = 64

Entry = tuple[Standing, int]


class AwaitedPages:
    """The `num_pages` pages of each node whose return is awaited, by standing. Leaves out nodes that `is_held` says are in use to
    their end: these pages can't be taken anyway.

    Coming, going and asking cost a search and a move of memory, and asking a look at each node that was in use before.
    """

    def __init__(self, num_pages: Callable[[Node], int], is_held: Callable[[Node], bool]) -> None:
        self._num_pages = num_pages
        self._is_held = is_held
        self._entries: list[Entry] = []  # in order, of nodes that nobody uses
        self._pages: list[int] = []  # those of `_entries`, so that they are summed quickly
        self._known: dict[Node, Entry] = {}
        self._held: dict[Node, None] = {}  # those of `_known` that were in use when last looked at
        self._ends: list[tuple[float, int, Node]] = []  # when the returns are given up
        self._tickets: dict[Node, int] = {}  # of the known; ends with another ticket are stale
        self._count = count()

    def note(self, node: Node, now: float) -> None:
        """Something has changed about `node`: whether it is awaited, by whom, or its pages."""
        self.drop(node)
        hint = node.hint
        if hint is None or not hint.is_awaited(now):
            return
        self._known[node] = (hint.standing, self._num_pages(node))
        ticket = self._tickets[node] = next(self._count)
        heapq.heappush(self._ends, (hint.expires, ticket, node))
        if len(self._ends) > 2 * len(self._known) + STALE:
            self._ends = [end for end in self._ends if self._tickets.get(end[2]) == end[1]]
            heapq.heapify(self._ends)
        self._stand(node)

    def drop(self, node: Node) -> None:
        """Nothing of `node` is awaited."""
        entry = self._known.pop(node, None)
        if entry is None:
            return
        del self._tickets[node]
        if node in self._held:
            del self._held[node]
        else:
            at = bisect_left(self._entries, entry)
            del self._entries[at], self._pages[at]

    def above(self, standing: Standing | None, now: float) -> int:
        """Pages that are awaited with more than this standing; all of them where None is given."""
        while self._ends and self._ends[0][0] <= now:
            _, ticket, node = heapq.heappop(self._ends)
            if self._tickets.get(node) == ticket:
                self.drop(node)
        for node in [node for node in self._held if not self._is_held(node)]:
            del self._held[node]
            self._stand(node)
        return sum(self._pages[bisect_right(self._entries, standing, key=_standing) if standing else 0 :])

    def clear(self) -> None:
        """Nothing is awaited any more."""
        for kept in (self._entries, self._pages, self._known, self._held, self._ends, self._tickets):
            kept.clear()

    def check(self, nodes: Collection[Node], now: float) -> None:
        """Hold what is known against all nodes of the tree. Raises AssertionError."""
        awaited = {node: (node.hint.standing, self._num_pages(node)) for node in nodes if node.hint and node.hint.is_awaited(now)}
        self.above(None, now)
        assert self._known == awaited, f"{len(awaited)} nodes are awaited, {len(self._known)} are known, or with other pages"
        idle = sorted(entry for node, entry in awaited.items() if node not in self._held)
        assert self._entries == idle and self._pages == [pages for _, pages in idle], "awaited pages are counted wrong"
        assert all(self._is_held(node) for node in self._held), "a node counts as in use and isn't"

    def _stand(self, node: Node) -> None:
        if self._is_held(node):
            self._held[node] = None
            return
        entry = self._known[node]
        at = bisect_right(self._entries, entry)
        self._entries.insert(at, entry)
        self._pages.insert(at, entry[1])


def _standing(entry: Entry) -> Standing:
    return entry[0]
