"""The nodes of the tree under change: found, split and joined, grown, cut, moved to the other tier.

Between `tree.py`, which says what is wanted, and the pools, which count pages and slots. Each operation keeps the rules of
`node.py` and leaves every node that eviction could take in its queue.
"""

from collections.abc import Iterator, Sequence

from branchpoint.radix.awaited import AwaitedPages
from branchpoint.radix.handle import HostStretch
from branchpoint.radix.hints import Standing
from branchpoint.radix.host import HostTier
from branchpoint.radix.key import PrefixKey, common_prefix
from branchpoint.radix.node import Node
from branchpoint.radix.policy import EvictionQueue
from branchpoint.radix.pool import BlockPool

__all__ = ["Branches"]


class Branches:
    """Roots and all below them. `queue` holds what can leave the device next, `host_queue` what can leave host memory."""

    def __init__(self, pool: BlockPool, host: HostTier | None) -> None:
        self.pool = pool
        self.host = host
        self.size = pool.page_size
        self.roots: dict[str, Node] = {}
        self.names: dict[Node, str] = {}
        self.queue = EvictionQueue(
            lambda node: 0 if node.children else len(node.pages),
            AwaitedPages(lambda node: len(node.pages), lambda node: bool(node.pages) and pool.references(node.pages[-1]) > 1),
        )
        self.host_queue = EvictionQueue(
            lambda node: len(node.slots) if node.is_leaf else 0,
            AwaitedPages(lambda node: len(node.slots), lambda node: False),  # a slot in use isn't free either
        )
        self.num_tokens = 0

    def root(self, namespace: str) -> Node:
        """The root of `namespace`, made where there is none; it must get a child before anything else happens."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(None, 0, PrefixKey(namespace, ()).packed, [])
            self.names[root] = namespace
        return root

    def walk(self, key: PrefixKey, limit: int | None) -> tuple[list[Node], int]:
        """The nodes that the known prefix of `key` runs through, in both tiers, and its length; it may end inside the last."""
        packed = key.packed
        stop = len(packed) if limit is None else min(max(limit, 0), len(packed))
        path: list[Node] = []
        above = self.roots.get(key.namespace)
        at = 0
        while above is not None and at < stop:
            node = above.children.get(packed[at]) or above.cold.get(packed[at])
            if node is not None:
                path.append(node)
                edge = node.tokens
                part = packed[at : min(at + len(edge), stop)]
                if part == edge:
                    at += len(edge)
                else:
                    at += common_prefix(part, edge)
                    break
            above = node
        return path, at

    def warm_part(self, path: list[Node], length: int) -> tuple[Node | None, int]:
        """The last warm node of `path`, and how much of the `length` tokens pages on the device hold."""
        last: Node | None = None
        for node in path:
            if node.is_cold:
                break
            last = node
        return last, min(length, last.device_end(self.size)) if last else 0

    def stretch(self, path: list[Node], whole: int, length: int) -> HostStretch:
        """What host memory holds of a match of `length` tokens on `path`, behind `whole` pages on the device."""
        assert self.host is not None, "slots without a host tier"
        slots: list[int] = []
        for node in path:
            slots += node.slots[: length // self.size - whole - len(slots)]
        tail = (path[-1].slot_at(length // self.size, self.size), length % self.size) if length % self.size else None
        return HostStretch(self.host.pool, tuple(slots), tail, length)

    def num_awaited(self, standing: Standing, now: float) -> int:
        """Pages awaited with more than this standing that would be lost if they left the device."""
        awaited = self.queue.awaited.above(standing, now)
        if awaited and self.host is not None:
            awaited -= self.host.pool.num_pages - self.host_queue.awaited.above(None, now)
        return max(0, awaited)

    def nodes(self, namespace: str | None = None) -> Iterator[tuple[str, Node]]:
        """All nodes but the roots with their namespaces, parents before children."""
        for name, root in self.roots.items():
            stack = [root] if namespace in (None, name) else []
            while stack:
                node = stack.pop()
                stack.extend(reversed((*node.children.values(), *node.cold.values())))
                if node is not root:
                    yield name, node

    def touch(self, node: Node, now: float) -> None:
        """`node` is used now."""
        node.last_used = now
        if node.busy_until:
            node.busy_until = 0.0
            self.again(node, now)
        self.queue.used(node)
        self.host_queue.used(node)

    def again(self, node: Node, now: float) -> None:
        """What was said about `node`, or what it has, has changed: let both queues know."""
        self.queue.again(node, now)
        self.host_queue.again(node, now)

    def split(self, node: Node, offset: int, now: float) -> Node:
        """Cut the edge of `node` in two; returns the upper part, which has no hints."""
        upper = node.split(offset, self.size)
        self.queue.push(upper, now)
        if node.hint is not None:
            self.again(node, now)  # it has fewer pages now
        return upper

    def join(self, path: list[Node], now: float) -> list[Node]:
        """Join the nodes of a path just used that only children now gone had split, so that paths don't stay cut to pieces.

        Returns the path as it is then.
        """
        joined: list[Node] = []
        upper: list[Node] = []
        for node, below in zip(path, (*path[1:], None), strict=False):
            only = len(node.children) + len(node.cold) == 1
            if below and only and node.hint is None and node.priority == below.priority:
                upper.append(node)
                continue
            if upper:
                node.absorb(upper)
                for gone in upper:
                    self._unqueue(gone)
                self._settle(node, now)
                upper = []
            joined.append(node)
        return joined

    def refill(self, path: list[Node], pages: Sequence[int], length: int, now: float) -> None:
        """Let device pages take the place of host slots on `path`; `pages` hold `length` tokens from its start on."""
        host = self.host
        if host is None or not any(node.slots for node in path):
            return
        for node in path:
            first = node.start // self.size + len(node.pages)
            whole = len(pages) if node.is_leaf and node.end == length else length // self.size
            fresh = list(pages[first:whole])[: len(node.slots)]
            if fresh:
                self.pool.cache(fresh)
                node.pages += fresh
                host.pool.uncache(node.slots[: len(fresh)])
                del node.slots[: len(fresh)]
                if node.hint is not None:
                    self.again(node, now)
        self._rewarm(path)
        last, _ = self.warm_part(path, length)
        if last:
            self.queue.push(last, now)

    def attach(self, path: list[Node], leaf: Node, *, extend: bool, now: float) -> Node:
        """Put `leaf` at the end of `path` (its root where that is empty), which ends where the leaf starts.

        The leaf's first page may hold the end of the path's tokens too. With `extend` a leaf at the end takes over tokens and
        pages of the new one. Returns the node that has them now.
        """
        above = leaf.parent
        assert above is not None, "a leaf has a parent"
        was_leaf = above.is_leaf and bool(path)
        if was_leaf and above.end % self.size:  # the leaf's first page is the same page grown, or a copy that was written on
            if above.slots:
                self._drop_slots((above.slots.pop(),))
            else:
                self.pool.uncache((above.pages.pop(),))
            if above.hint is not None:
                self.again(above, now)
        self.pool.cache(leaf.pages)
        self.num_tokens += len(leaf.tokens)
        if was_leaf and extend and not above.slots:
            above.tokens.extend(leaf.tokens)
            above.pages.extend(leaf.pages)
            leaf = above
        else:
            above.children[leaf.tokens[0]] = leaf
        self._rewarm(path)
        self.queue.push(leaf, now)
        return leaf

    def cut(self, node: Node, keep: int, now: float) -> int:
        """Keep the first `keep` pages of both tiers of a node without warm children, and nothing below; with none left it goes.

        Returns the number of device pages freed.
        """
        self._drop_below(node)
        if not keep:
            return self._remove(node, now)
        length = min((node.start // self.size + keep) * self.size - node.start, len(node.tokens))
        pages, slots = node.pages[keep:], node.slots[max(0, keep - len(node.pages)) :]
        self.num_tokens -= len(node.tokens) - length
        del node.tokens[length:], node.pages[keep:]
        self._drop_slots(slots)
        del node.slots[len(node.slots) - len(slots) :]
        node.cut = True
        self.queue.again(node, now)  # begun to be cut, it goes before others
        self._settle(node, now)
        return self.pool.uncache(pages)

    def chill(self, node: Node, keep: int, slots: list[int], now: float) -> int:
        """Let `slots` take the place of the device pages behind the first `keep`, all of them; returns the pages freed."""
        assert self.host is not None and len(node.pages) == keep + len(slots), "as many slots as pages that go"
        pages = node.pages[keep:]
        self.host.write(pages, slots)
        self.host.pool.cache(slots)
        del node.pages[keep:]
        node.slots[:0] = slots
        node.cut = True
        self._settle(node, now)
        return self.pool.uncache(pages)

    def clear(self) -> int:
        """Forget everything; returns the number of device pages freed. Walks the whole tree."""
        freed = 0
        for _, node in self.nodes():
            freed += self.pool.uncache(node.pages)
            self._drop_slots(node.slots)
        self.roots.clear()
        self.names.clear()
        self.queue.clear()
        self.host_queue.clear()
        self.num_tokens = 0
        return freed

    def _rewarm(self, path: list[Node]) -> None:
        """Nodes of `path` may have become warm: stand them where they belong, from the end up."""
        if self.host is not None:
            for node in reversed(path):
                node.place()

    def _settle(self, node: Node, now: float) -> None:
        """`node` has lost pages or children: enter it where it can be taken next, and let what is cold now stand as cold."""
        if node.hint is not None:
            self.again(node, now)
        self.host_queue.push(node, now)
        while node.parent is not None and not node.children:
            if node.pages:
                self.queue.push(node, now)
                return
            if node.parent.cold.get(node.tokens[0]) is node:
                return
            node.place()
            node = node.parent

    def _drop_below(self, node: Node) -> None:
        """Take all that is below a node without warm children out of the tree."""
        assert not node.children, "what is on the device below a node goes first"
        stack = list(node.cold.values())
        node.cold.clear()
        while stack:
            gone = stack.pop()
            stack.extend(gone.cold.values())
            self._drop_slots(gone.slots)
            self.num_tokens -= len(gone.tokens)
            self._unqueue(gone)

    def _remove(self, leaf: Node, now: float) -> int:
        """Take a leaf out of the tree, but for the page that its parent still needs and so inherits; returns the pages freed."""
        parent, pages, slots = leaf.parent, leaf.pages, leaf.slots
        assert parent is not None and leaf.is_leaf, "only leaves are removed"
        (parent.cold if leaf.is_cold else parent.children).pop(leaf.tokens[0])
        self.num_tokens -= len(leaf.tokens)
        self._unqueue(leaf)
        if parent.is_leaf:
            if parent.parent is None:
                del self.roots[self.names.pop(parent)]
            elif leaf.start % self.size:
                if pages:
                    parent.pages.append(pages.pop(0))
                else:
                    parent.slots.append(slots.pop(0))
        self._settle(parent, now)
        self._drop_slots(slots)
        return self.pool.uncache(pages)

    def _drop_slots(self, slots: Sequence[int]) -> None:
        if slots:
            assert self.host is not None, "slots without a host tier"
            self.host.pool.uncache(slots)

    def _unqueue(self, node: Node) -> None:
        node.hint = None
        self.queue.discard(node)
        self.host_queue.discard(node)
