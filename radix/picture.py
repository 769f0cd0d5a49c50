"""What a radix tree looks like from outside: a dump for programs, a picture for people."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypedDict

from branchpoint.radix.node import Node
from branchpoint.radix.pool import BlockPool

__all__ = ["DumpOptions", "NodeDump", "TreeDump", "dump", "render", "within"]


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Of which namespace (all by default), at most how many tokens of each node, and with `decode` their text too."""

    namespace: str | None = None
    max_tokens: int | None = None
    decode: Callable[[list[int]], str] | None = None


class NodeDump(TypedDict):
    """One node: its place, its tokens, where their KV lies, how it was used, and what was said about it.

    `parent` is the id of a node listed before, or None. `tokens` are the first of `num_tokens`, `text` is theirs or None. Nobody
    but the tree holds `num_evictable` of the pages. `tier` is "device", "host", "both", or "-" where nodes below own all pages.
    `awaited_seconds` is the time until the announced return, negative when it is late, `lifted_seconds` that for which `priority`
    lasts; None where nothing was said.
    """

    id: int
    parent: int | None
    namespace: str
    start: int
    num_tokens: int
    tokens: list[int]
    text: str | None
    pages: list[int]
    num_evictable: int
    slots: list[int]
    tier: str
    hits: int
    priority: int
    idle_seconds: float
    lifted_seconds: float | None
    awaited_seconds: float | None
    awaited_uses: int
    last_use: bool


class TreeDump(TypedDict):
    """A tree, or one namespace of it; the totals are those of what is listed.

    `num_evictable` counts the pages that nobody but the tree holds; `num_host_slots` is the size of the host tier.
    """

    page_size: int
    num_tokens: int
    num_pages: int
    num_evictable: int
    num_host_pages: int
    num_host_slots: int
    nodes: list[NodeDump]


def dump(
    nodes: Iterable[tuple[str, Node]], pool: BlockPool, host: BlockPool | None, now: float, options: DumpOptions
) -> TreeDump:
    """List `nodes`, parents before children, and the totals. `now` is the tree's clock."""
    numbers: dict[Node | None, int] = {}
    listed: list[NodeDump] = []
    for number, (namespace, node) in enumerate(nodes):
        numbers[node] = number
        evictable = sum(pool.references(page) == 1 for page in node.pages)
        listed.append(_node(number, numbers.get(node.parent), namespace, node, evictable, now, options))
    return _tree(listed, pool.page_size, host.num_pages if host else 0)


def within(tree: TreeDump, shown: Callable[[str], bool]) -> TreeDump:
    """What of a dump lies in namespaces that are `shown`; numbers and totals are its own, so that nothing tells of the others."""
    kept = [node for node in tree["nodes"] if shown(node["namespace"])]
    numbers = {node["id"]: number for number, node in enumerate(kept)}
    listed = [
        node | {"id": number, "parent": None if node["parent"] is None else numbers[node["parent"]]}
        for number, node in enumerate(kept)
    ]
    return _tree(listed, tree["page_size"], tree["num_host_slots"])


def _tree(listed: list[NodeDump], page_size: int, num_host_slots: int) -> TreeDump:
    return TreeDump(
        page_size=page_size,
        num_tokens=sum(node["num_tokens"] for node in listed),
        num_pages=sum(len(node["pages"]) for node in listed),
        num_evictable=sum(node["num_evictable"] for node in listed),
        num_host_pages=sum(len(node["slots"]) for node in listed),
        num_host_slots=num_host_slots,
        nodes=listed,
    )


def _node(
    number: int, parent: int | None, namespace: str, node: Node, evictable: int, now: float, options: DumpOptions
) -> NodeDump:
    tokens = node.tokens[: options.max_tokens].tolist()
    hint = node.hint
    lifts = [until - now for _, until in hint.lifts if until > now] if hint else []
    awaited = hint is not None and hint.is_awaited(now)
    return NodeDump(
        id=number,
        parent=parent,
        namespace=namespace,
        start=node.start,
        num_tokens=len(node.tokens),
        tokens=tokens,
        text=options.decode(tokens) if options.decode else None,
        pages=list(node.pages),
        num_evictable=evictable,
        slots=list(node.slots),
        tier="both" if node.pages and node.slots else "device" if node.pages else "host" if node.slots else "-",
        hits=node.hits,
        priority=hint.priority(node.priority, now) if hint else node.priority,
        idle_seconds=now - node.last_used,
        lifted_seconds=max(lifts, default=None),
        awaited_seconds=hint.expected - now if hint and awaited else None,
        awaited_uses=hint.uses if hint and awaited else 0,
        last_use=hint is not None and hint.last,
    )


def render(tree: TreeDump) -> str:
    """A line of totals, then a line for each node, indented by its depth."""
    totals = f"{tree['num_tokens']} tokens in {tree['num_pages']} pages of {tree['page_size']}, {tree['num_evictable']} evictable"
    if tree["num_host_slots"]:
        totals += f", {tree['num_host_pages']} of {tree['num_host_slots']} host slots"
    lines = [totals]
    depth: dict[int | None, int] = {None: 0}
    namespace: str | None = None
    for node in tree["nodes"]:
        if node["namespace"] != namespace:
            namespace = node["namespace"]
            lines.append(f"namespace {namespace!r}")
        depth[node["id"]] = depth[node["parent"]] + 1
        lines.append("  " * depth[node["id"]] + _line(node))
    return "\n".join(lines)


def _line(node: NodeDump) -> str:
    content = _some(node["tokens"], node["num_tokens"]) if node["text"] is None else repr(_short(node["text"]))
    parts = [
        f"[{node['start']}, {node['start'] + node['num_tokens']}) {content}",
        f"pages {_some(node['pages'], len(node['pages']))}",
        f"{node['hits']} hits",
        f"{node['idle_seconds']:.0f} s idle",
    ]
    if node["slots"]:
        parts.insert(2, f"host {_some(node['slots'], len(node['slots']))}")
    if node["priority"]:
        lasts = node["lifted_seconds"]
        parts.append(f"priority {node['priority']}" + (f" for {lasts:.0f} s" if lasts is not None else ""))
    if node["awaited_seconds"] is not None:
        parts.append(f"{node['awaited_uses']} awaited in {node['awaited_seconds']:.0f} s")
    if node["last_use"]:
        parts.append("last use")
    return " · ".join(parts)


def _some(numbers: list[int], total: int) -> str:
    shown = " ".join(map(str, numbers[:6]))
    return f"{shown} … ({total})" if total > 6 else shown or "-"


def _short(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
