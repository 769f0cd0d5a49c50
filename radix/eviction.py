"""Makes room on the device: leaves lose pages from their end, into host memory where there is room for them, else for good.

Asked by `RadixTree.evict`; `policy.py` says in which order, `branches.py` does the cutting.
"""

from branchpoint.radix.branches import Branches
from branchpoint.radix.node import Node
from branchpoint.radix.policy import rank

__all__ = ["evict"]

BUSY_SECONDS = 0.1  # a leaf whose end is in use goes after all others for as long, so that it isn't looked at in each step


def evict(branches: Branches, num_pages: int, now: float) -> int:
    """Free at least `num_pages` device pages, or all that are evictable; returns how many were freed. See `RadixTree.evict`."""
    pool, freed = branches.pool, 0
    shut: list[Node] = []
    while freed < num_pages and pool.num_idle:
        leaf = branches.queue.pop(now)
        if leaf is None:
            _open_one(branches, shut, now)
        elif idle := _idle_at_end(leaf.pages, num_pages - freed, branches):
            freed += _let_go(branches, leaf, len(leaf.pages) - idle, now)
        else:
            shut.append(leaf)
    for leaf in shut:
        leaf.last_used, leaf.busy_until = now, now + BUSY_SECONDS
        branches.queue.push(leaf, now)
    return freed


def _idle_at_end(pages: list[int], most: int, branches: Branches) -> int:
    """How many of the last pages nobody but the tree holds, up to `most`."""
    references = branches.pool.references
    idle = 0
    while idle < min(most, len(pages)) and references(pages[-1 - idle]) == 1:
        idle += 1
    return idle


def _let_go(branches: Branches, leaf: Node, keep: int, now: float) -> int:
    """Take the pages behind the first `keep` from the device: as many of them as host memory has room for stay known."""
    leaving = len(leaf.pages) - keep
    slots = _slots(branches, leaf, leaving, now)
    freed = 0
    if len(slots) < leaving:
        freed = branches.cut(leaf, keep + len(slots), now)
    if slots:
        freed += branches.chill(leaf, keep, slots, now)
    return freed


def _slots(branches: Branches, leaf: Node, count: int, now: float) -> list[int]:
    """Up to `count` fresh host slots for pages of `leaf`: free ones, and those of leaves that should go before it."""
    host = branches.host
    if host is None or (leaf.hint and leaf.hint.last):
        return []
    limit = rank(leaf, now)
    shut: list[Node] = []
    while host.pool.num_free < count:
        victim = branches.host_queue.pop(now, limit)
        if victim is None:
            break
        idle = 0
        while idle < min(count - host.pool.num_free, len(victim.slots)) and host.pool.references(victim.slots[-1 - idle]) == 1:
            idle += 1
        if idle:
            branches.cut(victim, len(victim.pages) + len(victim.slots) - idle, now)
        else:
            shut.append(victim)
    for victim in shut:
        branches.host_queue.push(victim, now)
    return host.pool.allocate(min(count, host.pool.num_free))


def _open_one(branches: Branches, shut: list[Node], now: float) -> None:
    """Let go of the pages in use at the end of the first leaf that has idle pages before them. There must be one."""
    references = branches.pool.references
    for position, leaf in enumerate(shut):
        node: Node | None = leaf
        while node is not None and not any(references(page) == 1 for page in node.pages):
            node = node.parent
        if node is not None:
            del shut[position]
            idle = [index for index, page in enumerate(leaf.pages, 1) if references(page) == 1]
            branches.cut(leaf, max(idle, default=0), now)
            return
    raise AssertionError(f"{branches.pool.num_idle} pages are idle, but lie above no leaf")
