"""The rules that every graph keeps, checked before one is run: `verify`.

Called by `graph.py` on what was traced and on what was loaded. A graph from elsewhere is data from outside: here it is checked
once, and `play.py` trusts it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from branchpoint.constrained.spec import Choice, JsonSchema, Regex
from branchpoint.errors import BranchpointError
from branchpoint.lang import nodes as op
from branchpoint.lang.choices import method_of
from branchpoint.lang.nodes import VERSION, Graph, InvalidGraph, NodeBase, Template
from branchpoint.lang.options import sampling_params
from branchpoint.runtime.messages import MAX_PROGRAM_NAME

__all__ = ["GraphLimits", "verify"]

_CONSTRAINTS = {"int": (Regex,), "float": (Regex,), "bool": (Choice,), "json": (JsonSchema,)}


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """How large a graph may be; `text` is the number of its constants' characters in all."""

    nodes: int = 10_000
    states: int = 1_000
    text: int = 1 << 22


@dataclass(slots=True)
class _Seen:
    """What the nodes before this one made."""

    graph: Graph
    roles: dict[int, str | None] = field(default_factory=lambda: dict[int, str | None]({0: None}))
    forks: dict[tuple[int, ...], int] = field(default_factory=dict)
    calls: set[int] = field(default_factory=set)


def verify(graph: Graph, limits: GraphLimits | None = None) -> Graph:
    """The graph itself. Raises InvalidGraph, naming the node, where it breaks a rule."""
    limits = limits or GraphLimits()
    if graph.version != VERSION:
        raise InvalidGraph(f"The graph has version {graph.version}; this one can run version {VERSION}.")
    if len(graph.program) > MAX_PROGRAM_NAME:
        raise InvalidGraph(f"A program's name has at most {MAX_PROGRAM_NAME} characters, got {graph.program[:40]!r}...")
    if len(set(graph.parameters)) != len(graph.parameters) or not all(name.isidentifier() for name in graph.parameters):
        raise InvalidGraph(f"Parameters must be different names, got {', '.join(map(repr, graph.parameters))[:200]}.")
    text = sum(len(node.text) for node in graph.nodes if isinstance(node, op.Text))
    if len(graph.nodes) > limits.nodes or text > limits.text:
        raise InvalidGraph(
            f"A graph may have {limits.nodes} nodes and {limits.text} characters, got {len(graph.nodes)} and {text}."
        )
    seen = _Seen(graph)
    for number, node in enumerate(graph.nodes):
        problem = _problem(seen, number, node)
        if problem is None and len(seen.roles) > limits.states:
            problem = f"makes more than {limits.states} states"
        if problem is not None:
            name = type(node).__name__.lower()
            raise InvalidGraph(f"Node {number} ({name}{', ' + node.line if node.line else ''}) {problem}.")
    for where, template in [*graph.variables.items(), ("what it returns", graph.returns)]:
        _check_template(seen, where, template)
    return graph


def _problem(seen: _Seen, number: int, node: NodeBase) -> str | None:
    if node.state not in seen.roles:
        return f"adds to state {node.state}, which no fork before it makes"
    for kind, rule in _RULES.items():
        if isinstance(node, kind):
            return rule(seen, number, node)
    return None


def _argument(seen: _Seen, number: int, node: op.Argument) -> str | None:
    return None if node.name in seen.graph.parameters else f"takes {node.name!r}, which is no parameter"


def _value(seen: _Seen, number: int, node: op.Value) -> str | None:
    return None if node.of in seen.calls else f"takes the value of node {node.of}, which is no gen or select before it"


def _role(seen: _Seen, number: int, node: op.Role) -> str | None:
    current = seen.roles[node.state]
    if node.opens:
        seen.roles[node.state] = node.role
        return None if current is None else f"opens {node.role!r} while {current!r} is open"
    seen.roles[node.state] = None
    return None if current == node.role else f"closes {node.role!r}, but {current or 'no role'!r} is open"


def _gen(seen: _Seen, number: int, node: op.Gen) -> str | None:
    seen.calls.add(number)
    try:
        sampling = sampling_params(node.options)
    except BranchpointError as error:
        return f"has an impossible option: {error}"
    wanted = _CONSTRAINTS.get(node.kind)
    if wanted is not None and not isinstance(node.constraint, wanted):
        return f"is read as {node.kind}, but isn't held to one"
    return None if 0 <= node.pick < sampling.n else f"picks sample {node.pick} of {sampling.n}"


def _select(seen: _Seen, number: int, node: op.Select) -> str | None:
    seen.calls.add(number)
    try:
        method_of(node.method)
        sampling_params({"temperature": node.temperature, "seed": node.seed})
    except BranchpointError as error:
        return f"has an impossible option: {error}"
    return None if node.choices and all(node.choices) else "has no choices, or an empty one"


def _fork(seen: _Seen, number: int, node: op.Fork) -> str | None:
    if not node.children or len(set(node.children)) != len(node.children) or seen.roles.keys() & set(node.children):
        return f"must make new states, got {list(node.children)[:20]}"
    if min(node.children) < 0:
        return "makes a state with a negative number"
    seen.forks[node.children] = node.state
    seen.roles.update(dict.fromkeys(node.children, seen.roles[node.state]))
    return None


def _join(seen: _Seen, number: int, node: op.Join) -> str | None:
    same = seen.forks.get(node.children) == node.state
    return None if same else f"joins {list(node.children)[:20]}, which no fork of its state makes"


_RULES: dict[type[NodeBase], Callable[..., str | None]] = {
    op.Argument: _argument,
    op.Value: _value,
    op.Role: _role,
    op.Gen: _gen,
    op.Select: _select,
    op.Fork: _fork,
    op.Join: _join,
}


def _check_template(seen: _Seen, where: str, template: Template) -> None:
    match template:
        case op.Of(of) if of not in seen.calls:
            raise InvalidGraph(f"The graph gives for {where!r} the value of node {of}, which is no gen or select.")
        case op.Parameter(name) if name not in seen.graph.parameters:
            raise InvalidGraph(f"The graph gives for {where!r} the argument {name!r}, which is no parameter.")
        case op.Words(parts) | op.Items(parts):
            for part in parts:
                _check_template(seen, where, part)
        case op.Fields(fields):
            for part in fields.values():
                _check_template(seen, where, part)
        case _:
            assert isinstance(template, msgspec.Struct), "decoded as one of its kinds"
