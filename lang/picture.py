"""A graph as text for people: a node a line, indented by the fork that its state came out of."""

import json

from branchpoint.lang import nodes as op
from branchpoint.lang.nodes import Graph, Template
from branchpoint.lang.passes import constant_prefix

__all__ = ["picture", "told_node", "told_result"]

_WIDTH = 60


def picture(graph: Graph) -> str:
    """The graph as text."""
    depth = {0: 0}
    rows = [f"{graph.program}({', '.join(graph.parameters)})"]
    for number, node in enumerate(graph.nodes):
        if isinstance(node, op.Fork):
            depth.update(dict.fromkeys(node.children, depth[node.state] + 1))
        rows.append(f"{number:4}  {'  ' * depth[node.state]}s{node.state} {told_node(node)}")
    if shared := sum(len(node.text) for node in constant_prefix(graph) if isinstance(node, op.Text)):
        rows.append(f"begins with {shared} characters that all runs share")
    rows.append(f"returns {told_result(graph.returns)}")
    return "\n".join(rows)


def _short(text: str) -> str:
    shown = json.dumps(text, ensure_ascii=False)
    return shown if len(shown) <= _WIDTH else f"{shown[:_WIDTH]}… ({len(text)} characters)"


def _states(children: tuple[int, ...]) -> str:
    return ", ".join(f"s{child}" for child in children)


def told_node(node: op.Node) -> str:
    """What a node does, in a line."""
    match node:
        case op.Text(text=text):
            return f"text {_short(text)}"
        case op.Argument(name=name):
            return f"argument {name}"
        case op.Value(of=of):
            return f"value of {of}"
        case op.Role(role=role, opens=opens):
            return f"{'begin' if opens else 'end'} {role}"
        case op.Gen(name=name, kind=kind, options=options):
            asked = ", ".join(f"{option}={value!r}" for option, value in options.items())
            return f"gen {name or '-'}: {kind}" + (f" ({asked})" if asked else "")
        case op.Select(name=name, choices=choices, method=method):
            return f"select {name or '-'}: {_short(' | '.join(choices))} by {method}"
        case op.Fork(children=children):
            return f"fork into {_states(children)}"
        case op.Join(children=children, append=append):
            return f"join {_states(children)}" + (", their texts appended" if append else "")


def told_result(template: Template) -> str:
    """What a result is made of."""
    match template:
        case op.Of(of):
            return f"value of {of}"
        case op.Parameter(name):
            return f"argument {name}"
        case op.Const(value):
            return _short(value) if isinstance(value, str) else json.dumps(value)
        case op.Words(parts):
            return " + ".join(map(told_result, parts))
        case op.Items(items):
            return f"[{', '.join(map(told_result, items))}]"
        case op.Fields(fields):
            return "{" + ", ".join(f"{name}: {told_result(each)}" for name, each in fields.items()) + "}"
