"""What a radix tree looks like from outside: a dump for programs, a picture for people."""

from collections.abc import Iterable
from typing import TypedDict

from branchpoint.radix.node import Node
from branchpoint.radix.pool import BlockPool

__all__ = ["NodeDump", "TreeDump", "dump", "render"]


class NodeDump(TypedDict):
    """One node: its place, its tokens, its pages, and how it was used. `parent` is the id of a node listed before, or None."""

    id: int
    parent: int | None
    namespace: str
    start: int
    tokens: list[int]
    pages: list[int]
    hits: int
    priority: int
    idle_seconds: float


class TreeDump(TypedDict):
    """A whole tree. `num_evictable` counts the pages that nobody but the tree holds."""

    page_size: int
    num_tokens: int
    num_pages: int
    num_evictable: int
    nodes: list[NodeDump]


def dump(nodes: Iterable[tuple[str, Node]], pool: BlockPool, num_tokens: int, now: float) -> TreeDump:
    """List `nodes`, parents before children, and the totals. `now` is the tree's clock."""
    numbers: dict[Node | None, int] = {}
    listed: list[NodeDump] = []
    for number, (namespace, node) in enumerate(nodes):
        numbers[node] = number
        listed.append(
            NodeDump(
                id=number,
                parent=numbers.get(node.parent),
                namespace=namespace,
                start=node.start,
                tokens=node.tokens.tolist(),
                pages=list(node.pages),
                hits=node.hits,
                priority=node.priority,
                idle_seconds=now - node.last_used,
            )
        )
    return TreeDump(
        page_size=pool.page_size,
        num_tokens=num_tokens,
        num_pages=pool.num_cached,
        num_evictable=pool.num_idle,
        nodes=listed,
    )


def render(tree: TreeDump) -> str:
    """A line of totals, then a line for each node, indented by its depth."""
    lines = [
        f"{tree['num_tokens']} tokens in {tree['num_pages']} pages of {tree['page_size']}, {tree['num_evictable']} evictable"
    ]
    depth: dict[int | None, int] = {None: 0}
    namespace: str | None = None
    for node in tree["nodes"]:
        if node["namespace"] != namespace:
            namespace = node["namespace"]
            lines.append(f"namespace {namespace!r}")
        depth[node["id"]] = depth[node["parent"]] + 1
        end = node["start"] + len(node["tokens"])
        lines.append(
            f"{'  ' * depth[node['id']]}[{node['start']}, {end}) {_some(node['tokens'])} · pages {_some(node['pages'])}"
            f" · {node['hits']} hits" + (f" · priority {node['priority']}" if node["priority"] else "")
        )
    return "\n".join(lines)


def _some(numbers: list[int]) -> str:
    shown = " ".join(map(str, numbers[:6]))
    return f"{shown} … ({len(numbers)})" if len(numbers) > 6 else shown or "-"
