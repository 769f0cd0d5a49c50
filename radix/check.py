"""The rules that tree, pool and running sequences keep between them; tests ask after every operation, the engine when idle."""

from collections import Counter
from collections.abc import Iterable

from branchpoint.radix.branches import Branches
from branchpoint.radix.node import Node
from branchpoint.radix.pool import BlockPool

__all__ = ["check_balance", "check_tree"]


def check_balance(pool: BlockPool, held: Iterable[int]) -> None:
    """Hold the pool against all references outside the tree: `held` lists a page once for each (sequences and handles).

    Free pages, pages that the tree alone has and pages held must be all pages, and every count right to the reference. The same
    holds of host slots: for the pool of a `HostTier`, `held` are those of handles, and the tier's own `held`.
    Raises AssertionError with the first page that is off.
    """
    holders = Counter(held)
    for page in range(pool.num_pages):
        expected = holders[page] + pool.is_cached(page)
        assert pool.references(page) == expected, f"page {page} has {pool.references(page)} references, {expected} are known"
    total = pool.num_free + pool.num_idle + len(holders)
    assert total == pool.num_pages, f"free + tree + held is {total}, the pool has {pool.num_pages} pages"


def check_tree(branches: Branches, now: float) -> None:
    """Hold every node against the rules in `node.py`, the tree's totals against the pools', and what is awaited `now`."""
    tokens, pages, slots = 0, list[int](), list[int]()
    for namespace, node in branches.nodes():
        _check_node(branches, node, f"node [{node.start}, {node.end}) in {namespace!r}")
        tokens += len(node.tokens)
        pages += node.pages
        slots += node.slots
    assert tokens == branches.num_tokens, f"the tree holds {tokens} tokens, {branches.num_tokens} are counted"
    _check_owned(pages, branches.pool, "page")
    assert branches.host or not slots, "slots without a host tier"
    if branches.host:
        _check_owned(slots, branches.host.pool, "slot")
    nodes = [node for _, node in branches.nodes()]
    branches.queue.awaited.check(nodes, now)
    branches.host_queue.awaited.check(nodes, now)
    assert list(branches.names) == list(branches.roots.values()), "roots and their names differ"
    for root in branches.roots.values():
        assert not root.is_leaf and not root.pages and not root.slots, "a namespace is kept without prefixes"


def _check_node(branches: Branches, node: Node, where: str) -> None:
    size = branches.size
    assert node.tokens, f"{where} has no tokens"
    assert node.parent is not None, f"{where} has no parent"
    siblings, others = node.parent.children, node.parent.cold
    if node.is_cold:
        siblings, others = others, siblings
    assert siblings.get(node.tokens[0]) is node, f"{where} isn't its parent's child, or in the wrong tier"
    assert node.tokens[0] not in others, f"{where} has a twin in the other tier"
    assert node.start == node.parent.end, f"{where} doesn't start where its parent ends"
    last = -(-node.end // size) if node.is_leaf else node.end // size
    owned = len(node.pages) + len(node.slots)
    assert owned == last - node.start // size, f"{where} owns {owned} pages"
    assert not (node.children and node.slots), f"{where} is in host memory, but above pages on the device"
    assert node.children or not node.pages or node in branches.queue, f"{where} is a leaf that eviction will never see"
    assert not node.is_leaf or not node.slots or node in branches.host_queue, f"{where} is a host leaf that nobody will see"


def _check_owned(pages: list[int], pool: BlockPool, name: str) -> None:
    assert len(set(pages)) == len(pages), f"a {name} belongs to two nodes"
    marked = all(pool.is_cached(page) for page in pages)
    assert marked and len(pages) == pool.num_cached, f"{name}s and the pool's marks differ"
