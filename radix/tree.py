"""The radix tree: which pages hold which prefix, exact to the token at every page size, on the device and in host memory.

The scheduler matches before it admits a sequence, inserts when one has KV worth keeping, and evicts when the pool runs short.
Match, insert and evict touch the path they work on and never walk the tree; `node.py` says which node owns which page.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from branchpoint.radix.branches import Branches
from branchpoint.radix.check import check_tree
from branchpoint.radix.continuation import continuation, forks
from branchpoint.radix.eviction import evict
from branchpoint.radix.handle import Handle
from branchpoint.radix.hints import MAX_SECONDS, Hint, Standing
from branchpoint.radix.host import HostTier, Swap
from branchpoint.radix.key import PrefixKey
from branchpoint.radix.node import Node
from branchpoint.radix.picture import DumpOptions, TreeDump, dump, render
from branchpoint.radix.pins import PinBudget
from branchpoint.radix.pool import BlockPool

__all__ = ["RadixTree"]

LIFT_SECONDS = 300.0
PIN_SHARE = 0.5


class RadixTree:
    """Cached prefixes over the pages of one pool, which it alone caches in. Not safe across threads.

    The tree holds one reference to each page that it knows. `clock` gives seconds and never runs backwards; it orders eviction.
    With `host` evicted pages move there while it has room; the caller makes the copies that `take_swaps` plans.
    """

    def __init__(self, pool: BlockPool, clock: Callable[[], float] = time.monotonic, *, host: HostTier | None = None) -> None:
        self._pool = pool
        self._clock = clock
        self._host = host
        self._branches = Branches(pool, host)
        self._pins = PinBudget(int(PIN_SHARE * pool.num_pages))

    @property
    def num_pages(self) -> int:
        """Pages that the tree references."""
        return self._pool.num_cached

    @property
    def num_evictable(self) -> int:
        """Pages that the tree alone references: as many can `evict` free."""
        return self._pool.num_idle

    @property
    def num_host_pages(self) -> int:
        """Pages that the tree keeps in host memory."""
        return self._host.pool.num_cached if self._host else 0

    @property
    def num_tokens(self) -> int:
        """Tokens cached in both tiers, each shared one counted once."""
        return self._branches.num_tokens

    def num_awaited(self, standing: Standing) -> int:
        """Pages at the ends of cached prefixes whose return is awaited with more than this standing. Those in host memory aren't
        counted, nor what it has room for: that can leave the device and come back.
        """
        return self._branches.num_awaited(standing, self._clock())

    def match(self, key: PrefixKey, limit: int | None = None, *, use: bool = True) -> Handle:
        """The longest cached prefix of `key`, of at most `limit` tokens, held by the handle until it is released.

        Everything on its path counts as used now: the whole of the last edge too, where the match ends inside one. With `use`
        false it doesn't yet; call `use` with the handle when it does. What only host memory holds is in `handle.host`.
        """
        size = self._pool.page_size
        path, length = self._branches.walk(key, limit)
        last, ours = (path[-1] if path else None), length
        if self._host is not None:
            last, ours = self._branches.warm_part(path, length)
        whole = ours // size
        pages: list[int] = []
        for node in path:
            pages += node.pages[: whole - len(pages)]
        tail = (last.page_at(whole, size), ours % size) if last and ours % size else None
        host = self._branches.stretch(path, whole, length) if ours < length else None
        handle = Handle(self._pool, tuple(pages), tail, host, tuple(path))
        if use:
            self.use(handle)
        return handle

    def use(self, handle: Handle) -> None:
        """Count `handle`'s match as a use: of its age, its hits, and of a return that was announced."""
        now = self._clock()
        reached = handle.host.end + 1  # a caller always computes a token itself: the last of what it asked for
        for node in handle.path:
            node.hits += 1
            self._branches.touch(node, now)
            if node.end <= reached:
                node.cut = False
                if node.hint is not None:
                    node.hint.last = False
                    node.hint.uses = max(0, node.hint.uses - 1)
                    self._weigh(node, now)

    def peek(self, key: PrefixKey, limit: int | None = None, *, host: bool = False) -> int:
        """How many tokens `match` would find on the device, with `host` in both tiers; holds nothing and counts as no use."""
        path, length = self._branches.walk(key, limit)
        return length if host or self._host is None else self._branches.warm_part(path, length)[1]

    def continuation(self, key: PrefixKey, count: int) -> tuple[int, ...]:
        """Up to `count` tokens that are cached behind the whole of `key`, on the likeliest branch; counts as no use."""
        return continuation(self._branches, key, count)

    def forks(self, key: PrefixKey, count: int, width: int, reach: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Where `continuation` has others beside it: behind how many of its tokens, and `reach` tokens of `width` of them."""
        return forks(self._branches, key, count, width, reach)

    def insert(self, key: PrefixKey, pages: Sequence[int], *, priority: int = 0) -> int:
        """Cache what `pages` hold of `key`: ceil(len(key) / page size) pages, the last one perhaps partly filled.

        The tree takes its own reference to each page that it keeps and ignores those whose tokens it has on the device; the
        caller's references stay the caller's. A partly filled page may be written on by its first writer and inserted again
        under the longer key; one of which a host slot holds more stays out. A `priority` above 0 lasts `LIFT_SECONDS` from
        now; one below 0 for good. Returns the number of tokens newly cached.
        """
        size, length = self._pool.page_size, len(key)
        assert len(pages) == -(-length // size), f"{length} tokens fill {-(-length // size)} pages of {size}, got {len(pages)}"
        return self._enter(key, length, pages, priority)

    def restore(self, key: PrefixKey, handle: Handle, pages: Sequence[int]) -> int:
        """Plan to fill `pages`, fresh ones of the caller's, from the first as many of `handle.host.held`.

        `handle` must come from a match of `key`. Whole pages are entered into the tree at once, since copies are made before the
        forward pass that needs them. Returns how many tokens `handle.pages` and `pages` hold then.
        """
        host, stretch, size = self._host, handle.host, self._pool.page_size
        assert host is not None and len(pages) <= len(stretch.held) and not handle.released, "restore what the match found"
        host.read(stretch.held[: len(pages)], pages)
        filled = min(len(pages), len(stretch.slots))
        whole = (len(handle.pages) + filled) * size
        if filled:
            self._enter(key, whole, (*handle.pages, *pages[:filled]), 0)
        return whole + (stretch.tail[1] if stretch.tail and len(pages) > filled else 0)

    def evict(self, num_pages: int) -> int:
        """Free at least `num_pages` pages, or all that are evictable; returns how many were freed.

        Leaves go first, from their end, in the order of `EvictionQueue`, into host memory where there is room. Where only
        leaves in use are left and pages above them are not, the tree lets go of those leaves; their holders keep the pages.
        """
        return evict(self._branches, num_pages, self._clock())

    def pin(self, key: PrefixKey, seconds: float, *, priority: int = 1) -> int:
        """Let what is cached of `key` have at least `priority` for `seconds` (at most `MAX_SECONDS`); 0 takes earlier pins back.

        Pins together cover at most `PIN_SHARE` of the pool; what goes beyond is refused. Returns the number of tokens covered.
        """
        now = self._clock()
        node = self._end(key, now)
        if node is None:
            return 0
        hint = node.hint = node.hint or Hint()
        until = now + min(seconds, MAX_SECONDS)
        if seconds <= 0:
            self._pins.give_back(node)
            hint.lifts, hint.pinned_until = [], now
        elif self._pins.take(node, -(-node.end // self._pool.page_size), until, now):
            hint.pinned_until = max(until, hint.pinned_until)
            hint.lift(priority, until)
        covered = node.end if hint.pinned_until > now else 0
        self._weigh(node, now)
        return covered

    def expect(self, key: PrefixKey, seconds: float, *, uses: int = 1, standing: Standing = (0, 0)) -> int:
        """`key` will be used `uses` more times, about `seconds` from now: a tool call's duration, or 0 and the width of a fork.

        Until then it goes after others of its priority, and of those that are awaited after all of lower standing; each match
        that reaches its end counts as one return, and what doesn't return within 3 `seconds` and `GRACE_SECONDS` is no longer
        waited for. `uses=0` takes back what was said with this standing. Returns the tokens covered.
        """
        now = self._clock()
        node = self._end(key, now) if uses > 0 else self._forgone(key, standing, now)
        if node is None:
            return 0
        if uses > 0:
            node.hint = node.hint or Hint()
            node.hint.expect(now, min(max(seconds, 0.0), MAX_SECONDS / 3), uses, standing)
        self._weigh(node, now)
        return node.end if uses > 0 else 0

    def last_use(self, key: PrefixKey, *, standing: Standing = (0, 0)) -> int:
        """Who has this standing won't come back for `key`: evict first what it alone runs through, and keep it from host memory.

        Where others await it, nothing changes; where they share its end, it is only awaited no longer. A later match takes it
        back. Returns the number of tokens covered.
        """
        now = self._clock()
        node = self._forgone(key, standing, now)
        if node is None:
            return 0
        if node.is_leaf:
            node.hint = node.hint or Hint()
            node.hint.last = True
        self._weigh(node, now)
        return len(node.tokens) if node.is_leaf else 0

    def take_swaps(self) -> tuple[Swap, ...]:
        """The copies between the tiers planned since the last call, to be made in this order before the next forward pass.

        A copy within the device that the caller plans must keep its place: take the swaps planned before it first.
        """
        return self._host.take() if self._host else ()

    def settle(self, swaps: Iterable[Swap], *, made: bool = True) -> None:
        """`swaps` were made; or, with `made` false, never will be: then all is forgotten, since pages may hold anything."""
        if self._host is None:
            return
        swaps = tuple(swaps)
        if swaps and not made:
            self.flush()
        self._host.settle(swaps)

    def flush(self) -> int:
        """Forget everything in both tiers; pages in use stay with their holders. Returns the number of pages freed."""
        self._pins.clear()
        return self._branches.clear()

    def nodes(self, namespace: str | None = None) -> Iterator[tuple[str, Node]]:
        """All nodes but the roots with their namespaces, parents before children; of one namespace only if it is given."""
        return self._branches.nodes(namespace)

    def recent(self, count: int, namespace: str | None = None) -> list[PrefixKey]:
        """The `count` most recently used of the longest cached prefixes, the oldest first: for `find_lost_reuse`."""
        leaves = [(name, node) for name, node in self.nodes(namespace) if node.is_leaf]
        latest = heapq.nlargest(count, leaves, key=lambda found: found[1].last_used)
        return [PrefixKey(name, leaf.path_tokens()) for name, leaf in reversed(latest)]

    def dump(self, options: DumpOptions | None = None) -> TreeDump:
        """The tree as what `json.dumps` takes: totals, and a flat list of nodes that name their parents."""
        options = options or DumpOptions()
        host = self._host.pool if self._host else None
        return dump(self.nodes(options.namespace), self._pool, host, self._clock(), options)

    def render(self, options: DumpOptions | None = None) -> str:
        """The tree as indented text, a line for each node, with hits, age, pins and tier."""
        return render(self.dump(options))

    def check(self) -> None:
        """Hold every rule of the structure against the tree and the pools. Raises AssertionError naming the node."""
        check_tree(self._branches, self._clock())

    def _enter(self, key: PrefixKey, length: int, pages: Sequence[int], priority: int) -> int:
        """Cache the first `length` tokens of `key`, which `pages` hold."""
        size, now, branches = self._pool.page_size, self._clock(), self._branches
        path, start = branches.walk(key, length)
        if path and start < path[-1].end and (start < length or priority > path[-1].priority_at(now)):
            path[-1] = branches.split(path[-1], start - path[-1].start, now)
        for node in path:
            self._branches.touch(node, now)
            node.cut = False
            node.priority = max(node.priority, min(priority, 0))
            if node.hint is not None:
                self._weigh(node, now)
        path = branches.join(path, now)
        branches.refill(path, pages, length, now)
        if start < length:
            above = path[-1] if path else branches.root(key.namespace)
            leaf = Node(above, start, key.packed[start:length], list(pages[start // size :]))
            leaf.last_used, leaf.priority = now, min(priority, 0)
            plain = above.hint is None or above.hint.only_lifts(priority, now)
            path.append(branches.attach(path, leaf, extend=plain and above.priority == leaf.priority, now=now))
        if priority > 0 and path:
            path[-1].hint = path[-1].hint or Hint()
            path[-1].hint.lift(priority, now + LIFT_SECONDS)
            self._weigh(path[-1], now)
        return length - start

    def _end(self, key: PrefixKey, now: float) -> Node | None:
        """The node that ends where the cached part of `key` does, split off what lies behind."""
        path, length = self._branches.walk(key, None)
        last = path[-1] if path else None
        return self._branches.split(last, length - last.start, now) if last and length < last.end else last

    def _forgone(self, key: PrefixKey, standing: Standing, now: float) -> Node | None:
        """The node that ends where the cached part of `key` does, of which `standing` awaits nothing more, nor does another."""
        path, length = self._branches.walk(key, None)
        node = path[-1] if path and path[-1].end == length else None
        hint = node.hint if node else None
        if hint is not None and hint.is_awaited(now):
            if hint.standing != standing:
                return None
            hint.uses = 0
        return node

    def _weigh(self, node: Node, now: float) -> None:
        """The hints on `node` have changed, or may have ended: drop them if so, and let eviction know."""
        if node.hint is not None and node.hint.is_over(now):
            node.hint = None
        self._branches.again(node, now)
