"""The radix tree: which pages hold which prefix, exact to the token at every page size.

The scheduler matches before it admits a sequence, inserts when one has KV worth keeping, and evicts when the pool runs short.
Match, insert and evict touch the path they work on and never walk the tree; `node.py` says which node owns which page.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from branchpoint.radix import picture
from branchpoint.radix.check import check_tree
from branchpoint.radix.handle import Handle
from branchpoint.radix.key import PrefixKey, common_prefix
from branchpoint.radix.node import Node
from branchpoint.radix.policy import EvictionQueue
from branchpoint.radix.pool import BlockPool

__all__ = ["RadixTree"]


class RadixTree:
    """Cached prefixes over the pages of one pool, which it alone caches in. Not safe across threads.

    The tree holds one reference to each page that it knows. `clock` gives seconds and never runs backwards; it orders eviction.
    """

    def __init__(self, pool: BlockPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._roots: dict[str, Node] = {}
        self._namespaces: dict[Node, str] = {}
        self._queue = EvictionQueue()
        self._num_tokens = 0

    @property
    def num_pages(self) -> int:
        """Pages that the tree references."""
        return self._pool.num_cached

    @property
    def num_evictable(self) -> int:
        """Pages that the tree alone references: as many can `evict` free."""
        return self._pool.num_idle

    @property
    def num_tokens(self) -> int:
        """Tokens cached, each shared one counted once."""
        return self._num_tokens

    def match(self, key: PrefixKey, limit: int | None = None) -> Handle:
        """The longest cached prefix of `key`, of at most `limit` tokens, held by the handle until it is released.

        Everything on its path counts as used now: the whole of the last edge too, where the match ends inside one.
        """
        path, length = self._walk(key, limit)
        now = self._clock()
        size = self._pool.page_size
        whole = length // size
        pages: list[int] = []
        for node in path:
            node.last_used = now
            node.hits += 1
            pages += node.pages[: whole - len(pages)]
        tail = (path[-1].page_at(whole, size), length % size) if length % size else None
        return Handle(self._pool, tuple(pages), tail)

    def peek(self, key: PrefixKey, limit: int | None = None) -> int:
        """How many tokens `match` would find; holds nothing and counts as no use."""
        return self._walk(key, limit)[1]

    def insert(self, key: PrefixKey, pages: Sequence[int], *, priority: int = 0) -> int:
        """Cache what `pages` hold of `key`: ceil(len(key) / page size) pages, the last one perhaps partly filled.

        The tree takes its own reference to each page that it keeps and ignores those whose tokens it has; the caller's references
        stay the caller's. A partly filled page may be written on by its first writer and inserted again under the longer key.
        The whole path gets at least `priority`. Returns the number of tokens newly cached.
        """
        size, length = self._pool.page_size, len(key)
        assert len(pages) == -(-length // size), f"{length} tokens fill {-(-length // size)} pages of {size}, got {len(pages)}"
        path, start = self._walk(key, None)
        now = self._clock()
        if path and start < path[-1].end and (start < length or priority > path[-1].priority):
            path[-1] = path[-1].split(start - path[-1].start, size)
        for node in path:
            node.last_used = now
            node.priority = max(node.priority, priority)
        self._join(path)
        if start == length:
            return 0
        node = path[-1] if path else self._root(key.namespace)
        self._attach(node, key.packed[start:], list(pages[start // size :]), priority, now)
        self._num_tokens += length - start
        return length - start

    def evict(self, num_pages: int) -> int:
        """Free at least `num_pages` pages, or all that are evictable; returns how many were freed.

        Leaves go first, from their end, in the order of `EvictionQueue`. Where only leaves in use are left and pages above
        them are not, the tree lets go of those leaves; their holders keep the pages.
        """
        freed = 0
        shut: list[Node] = []
        while freed < num_pages and self._pool.num_idle:
            leaf = self._queue.pop()
            if leaf is None:
                self._open_one(shut)
            elif self._is_idle(leaf.pages[-1]):
                keep = len(leaf.pages)
                while keep and len(leaf.pages) - keep < num_pages - freed and self._is_idle(leaf.pages[keep - 1]):
                    keep -= 1
                freed += self._truncate(leaf, keep)
            else:
                shut.append(leaf)
        now = self._clock()
        for leaf in shut:
            leaf.last_used = now  # its pages are in use: it shall not come up first again
            self._queue.push(leaf)
        return freed

    def flush(self) -> int:
        """Forget everything; pages in use stay with their holders. Returns the number of pages freed. Walks the whole tree."""
        freed = sum(self._pool.uncache(node.pages) for _, node in self.nodes())
        self._roots.clear()
        self._namespaces.clear()
        self._queue.clear()
        self._num_tokens = 0
        return freed

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """All nodes but the roots with their namespaces, parents before children."""
        for namespace, root in self._roots.items():
            stack = [root]
            while stack:
                node = stack.pop()
                stack.extend(reversed(node.children.values()))
                if node is not root:
                    yield namespace, node

    def dump(self) -> picture.TreeDump:
        """The whole tree as what `json.dumps` takes: totals, and a flat list of nodes that name their parents."""
        return picture.dump(self.nodes(), self._pool, self._num_tokens, self._clock())

    def render(self) -> str:
        """The whole tree as indented text, a line for each node, with hit counts."""
        return picture.render(self.dump())

    def check(self) -> None:
        """Hold every rule of the structure against the tree and the pool. Raises AssertionError naming the node."""
        check_tree(list(self.nodes()), self._pool, self._num_tokens)
        assert list(self._namespaces) == list(self._roots.values()), "roots and their names differ"
        assert all(root.children and not root.pages for root in self._roots.values()), "a namespace is kept without prefixes"

    def _root(self, namespace: str) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node(None, 0, PrefixKey(namespace, ()).packed, [])
            self._namespaces[root] = namespace
        return root

    def _walk(self, key: PrefixKey, limit: int | None) -> tuple[list[Node], int]:
        """The nodes that the cached prefix of `key` runs through, and its length; it may end inside the last of them."""
        packed = key.packed
        stop = len(packed) if limit is None else min(max(limit, 0), len(packed))
        path: list[Node] = []
        node = self._roots.get(key.namespace)
        at = 0
        while node is not None and at < stop:
            node = node.children.get(packed[at])
            if node is not None:
                path.append(node)
                edge = node.tokens
                part = packed[at : min(at + len(edge), stop)]
                if part == edge:
                    at += len(edge)
                else:
                    at += common_prefix(part, edge)
                    break
        return path, at

    def _join(self, path: list[Node]) -> None:
        """Join the nodes of a path just used that only children now gone had split, so that paths don't stay cut to pieces."""
        upper: list[Node] = []
        for node, below in pairwise(path):
            if len(node.children) == 1 and node.priority == below.priority:
                upper.append(node)
            elif upper:
                node.absorb(upper)
                upper = []
        if upper:
            path[-1].absorb(upper)

    def _attach(self, node: Node, tokens: "array[int]", pages: list[int], priority: int, now: float) -> None:
        """Put `tokens` behind `node`, which ends where they start; `pages[0]` may hold the end of the node's tokens too."""
        is_leaf = not node.children and node.parent is not None
        if is_leaf and node.end % self._pool.page_size:
            self._pool.uncache((node.pages.pop(),))  # pages[0] is the same page grown, or a copy that was written on
        self._pool.cache(pages)
        if is_leaf and node.priority == priority:
            node.tokens.extend(tokens)
            node.pages.extend(pages)
            return
        leaf = node.children[tokens[0]] = Node(node, node.end, tokens, pages)
        leaf.last_used, leaf.priority = now, priority
        self._queue.push(leaf)

    def _is_idle(self, page: int) -> bool:
        return self._pool.references(page) == 1

    def _truncate(self, leaf: Node, keep: int) -> int:
        """Cut a leaf that isn't queued down to its first `keep` pages; with none left it goes. Returns the pages freed."""
        if keep:
            length = (leaf.start // self._pool.page_size + keep) * self._pool.page_size - leaf.start
            dropped = leaf.pages[keep:]
            self._num_tokens -= len(leaf.tokens) - length
            del leaf.tokens[length:], leaf.pages[keep:]
            self._queue.push(leaf)
        else:
            dropped = self._remove(leaf)
        return self._pool.uncache(dropped)

    def _remove(self, leaf: Node) -> list[int]:
        """Take a leaf out of the tree; returns its pages but the one that its parent still needs and so inherits."""
        parent, dropped = leaf.parent, leaf.pages
        assert parent is not None and not leaf.children, "only leaves are removed"
        del parent.children[leaf.tokens[0]]
        self._num_tokens -= len(leaf.tokens)
        if parent.children:
            return dropped
        if parent.parent is None:
            del self._roots[self._namespaces.pop(parent)]
            return dropped
        if leaf.start % self._pool.page_size:
            parent.pages.append(dropped[0])
            dropped = dropped[1:]
        self._queue.push(parent)
        return dropped

    def _open_one(self, shut: list[Node]) -> None:
        """Let go of the pages in use at the end of the first leaf that has idle pages before them. There must be one."""
        for position, leaf in enumerate(shut):
            node: Node | None = leaf
            while node is not None and not any(self._is_idle(page) for page in node.pages):
                node = node.parent
            if node is not None:
                del shut[position]
                idle = [index for index, page in enumerate(leaf.pages, 1) if self._is_idle(page)]
                self._truncate(leaf, max(idle, default=0))
                return
        raise AssertionError(f"{self._pool.num_idle} pages are idle, but lie above no leaf")
