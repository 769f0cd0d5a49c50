"""The rules that tree, pool and running sequences keep between them; tests ask after every operation, the engine when idle."""

from collections import Counter
from collections.abc import Iterable, Sequence

from branchpoint.radix.node import Node
from branchpoint.radix.pool import BlockPool

__all__ = ["check_balance", "check_tree"]


def check_balance(pool: BlockPool, held: Iterable[int]) -> None:
    """Hold the pool against all references outside the tree: `held` lists a page once for each (sequences and handles).

    Free pages, pages that the tree alone has and pages held must be all pages, and every count right to the reference.
    Raises AssertionError with the first page that is off.
    """
    holders = Counter(held)
    for page in range(pool.num_pages):
        expected = holders[page] + pool.is_cached(page)
        assert pool.references(page) == expected, f"page {page} has {pool.references(page)} references, {expected} are known"
    total = pool.num_free + pool.num_idle + len(holders)
    assert total == pool.num_pages, f"free + tree + held is {total}, the pool has {pool.num_pages} pages"


def check_tree(nodes: Sequence[tuple[str, Node]], pool: BlockPool, num_tokens: int) -> None:
    """Hold every node against the rules in `node.py`, and the tree's totals against the pool's."""
    size = pool.page_size
    pages: list[int] = []
    for namespace, node in nodes:
        where = f"node [{node.start}, {node.end}) in {namespace!r}"
        assert node.tokens, f"{where} has no tokens"
        assert node.parent is not None and node.parent.children.get(node.tokens[0]) is node, f"{where} isn't its parent's child"
        assert node.start == node.parent.end, f"{where} doesn't start where its parent ends"
        last = node.end // size if node.children else -(-node.end // size)
        assert len(node.pages) == last - node.start // size, f"{where} owns {len(node.pages)} pages"
        assert node.children or node.queued, f"{where} is a leaf that eviction will never see"
        pages += node.pages
    assert len(set(pages)) == len(pages), "a page belongs to two nodes"
    assert all(pool.is_cached(page) for page in pages) and len(pages) == pool.num_cached, "pages and the pool's marks differ"
    tokens = sum(len(node.tokens) for _, node in nodes)
    assert tokens == num_tokens, f"the tree holds {tokens} tokens, {num_tokens} are counted"
