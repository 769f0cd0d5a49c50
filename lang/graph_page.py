"""A graph as a page: `Compiled.to_html()`. One HTML text without scripts; notebooks show it, too.

Each state is a section inside that which it came out of, as in the page of a run (`page.py`); `picture.py` is the same as text.
"""

from collections.abc import Iterator
from html import escape

from branchpoint.lang import nodes as op
from branchpoint.lang.nodes import Graph
from branchpoint.lang.picture import told_node, told_result

__all__ = ["graph_page"]

_STYLE = """
.bpg{font:14px/1.5 system-ui,sans-serif;color:#222;max-width:70em}
.bpg section>div{white-space:pre-wrap;font:13px/1.7 ui-monospace,monospace}
.bpg section{border-left:3px solid #ccc;margin:.6em 0 .6em .4em;padding-left:.8em}
.bpg .role{color:#888}
.bpg .argument{background:#bfe3f5}
.bpg .value{background:#d9ccf5}
.bpg .gen{background:#fff0b3;border-bottom:2px solid #888}
.bpg .select{background:#cfe8cf;border-bottom:2px solid #888}
.bpg .note{font-size:11px;color:#666}
"""
_LEGEND = {
    "gen": "what a gen makes",
    "select": "one of several choices",
    "argument": "an argument of the program",
    "value": "what an earlier call came to",
}


def graph_page(graph: Graph) -> str:
    """The page of a verified graph."""
    title = escape(f"{graph.program}({', '.join(graph.parameters)})")
    legend = " ".join(f'<span class="{kind}" title="{told}">{kind}</span>' for kind, told in _LEGEND.items())
    body = "".join(_sections(graph))
    result = escape(told_result(graph.returns))
    return (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><div class="bpg"><style>{_STYLE}</style>'
        f"<h3>{title}</h3><p>{legend}</p>{body}<p>returns {result}</p></div>"
    )


def _sections(graph: Graph) -> Iterator[str]:
    """All states; those of a fork stand behind it. A tree may be deeper than Python's stack."""
    states: dict[int, list[str | int]] = {0: []}
    for number, node in enumerate(graph.nodes):
        children = node.children if isinstance(node, op.Fork) else ()
        states[node.state] += [_told(number, node), *children]
        states.update((child, []) for child in children)
    within = [iter(states[0])]
    yield _begin(0)
    while within:
        match next(within[-1], None):
            case None:
                within.pop()
                yield "</section>"
            case str(told):
                yield told
            case child:
                yield _begin(child)
                within.append(iter(states[child]))


def _begin(state: int) -> str:
    return f'<section><div class="note">s{state}</div>'


def _told(number: int, node: op.Node) -> str:
    """A node, whole: what is too long for a line of the text wraps."""
    match node:
        case op.Text(text=text):
            kind, shown = "text", text
        case op.Argument(name=name):
            kind, shown = "argument", name
        case op.Value(of=of):
            kind, shown = "value", f"value of {of}"
        case op.Select(choices=choices):
            kind, shown = "select", f"{told_node(node)}\n" + "\n".join(choices)
        case op.Role() | op.Gen():
            kind, shown = type(node).__name__.lower(), told_node(node)
        case op.Fork() | op.Join():
            kind, shown = "note", told_node(node)
    line = f' title="{escape(node.line)}"' if node.line else ""
    return f'<div><span class="note">{number}</span> <span class="{kind}"{line}>{escape(shown)}</span></div>'
