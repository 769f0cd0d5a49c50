"""Plays a graph on a state: each node is added as the program would add it, so that text, seeds and KV are the same.

Called by `graph.py`. Nothing waits while nodes are added: where a value goes into a text of another state, the ledger waits.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from branchpoint.lang import nodes as op
from branchpoint.lang.choices import method_of
from branchpoint.lang.errors import Origin
from branchpoint.lang.expr import Gen, Leaf, Literal, RoleBegin, RoleEnd, Select, Slot
from branchpoint.lang.fork import Fork
from branchpoint.lang.nodes import Graph, Template
from branchpoint.lang.passes import last_calls
from branchpoint.lang.state import State
from branchpoint.lang.stream import Replay
from branchpoint.lang.types import OutputType, output_type
from branchpoint.lang.variables import CallEntry, Fixed, Joined, Variable

__all__ = ["Called", "play"]


@dataclass(frozen=True, slots=True)
class Called:
    """A call that was added: its node, the branch of its state, and its entry."""

    node: int
    branch: tuple[int, ...]
    entry: CallEntry


class _Player:
    """One run of a graph. `outputs` are Python's types of gens, where they are known."""

    def __init__(
        self,
        graph: Graph,
        state: State,
        arguments: Mapping[str, object],
        outputs: Mapping[int, OutputType],
        called: Replay[Called] | None,
    ) -> None:
        self._graph = graph
        self._last_calls = last_calls(graph)
        self._called = called
        self._arguments = arguments
        self._outputs = outputs
        self._states = {0: state}
        self._forks: dict[tuple[int, ...], Fork] = {}
        self._values: dict[int, CallEntry] = {}

    def run(self) -> object:
        """Add all nodes, bind the variables, and give what the program returns; only that waits."""
        for number, node in enumerate(self._graph.nodes):
            self._add(number, node)
        state = self._states[0]
        for name, template in self._graph.variables.items():
            state.bind(name, self._variable(name, template))
        return self._result(self._graph.returns)

    def _add(self, number: int, node: op.Node) -> None:
        state = self._states[node.state]
        match node:
            case op.Fork(children=children):
                fork = state.fork(len(children))
                for child, branch in zip(children, fork, strict=True):
                    branch.place.last_call = self._last_calls.get(child)
                    self._states[child] = branch
                self._forks[children] = fork
            case op.Join(children=children, append=append):
                if append:
                    self._forks[children].join("concate_and_append")
            case _:
                state.add_leaf(self._leaf(number, node), _origin(node.line))
                entry = state.here()[0]
                if isinstance(entry, CallEntry):
                    self._values[number] = entry
                    if self._called is not None:
                        self._called.put(Called(number, state.branch, entry))

    def _leaf(self, number: int, node: op.Text | op.Argument | op.Value | op.Role | op.Gen | op.Select) -> Leaf:
        match node:
            case op.Text(text=text):
                return Literal(text)
            case op.Argument(name=name):
                return Literal(str(self._arguments[name]))
            case op.Value(of=of):
                return Slot(self._values[of])
            case op.Role(role=role, opens=opens):
                return RoleBegin(role) if opens else RoleEnd(role)
            case op.Gen():
                return Gen(node.name, self._output(number, node), node.constraint, node.options, node.pick)
            case op.Select():
                return Select(node.name, node.choices, method_of(node.method), node.temperature, node.seed)
        assert_never(node)

    def _output(self, number: int, node: op.Gen) -> OutputType | None:
        if number in self._outputs:
            return self._outputs[number]
        match node.kind:
            case "text":
                return None
            case "json":
                return OutputType("JSON", node.constraint, json.loads)
            case "int":
                return output_type(int)
            case "float":
                return output_type(float)
            case "bool":
                return output_type(bool)
        assert_never(node.kind)

    def _variable(self, name: str, template: Template) -> Variable:
        if isinstance(template, op.Of):
            return self._values[template.of]
        if isinstance(template, op.Items) and any(isinstance(item, op.Of) for item in template.items):
            return Joined(name, [self._variable(name, item) for item in template.items], "raise")
        return Fixed(name, self._result(template))

    def _result(self, template: Template) -> object:
        match template:
            case op.Of(of):
                return self._values[of].read()
            case op.Parameter(name):
                return self._arguments[name]
            case op.Const(value):
                return value
            case op.Words(parts):
                return "".join(str(self._result(part)) for part in parts)
            case op.Items(items):
                return [self._result(item) for item in items]
            case op.Fields(fields):
                return {name: self._result(each) for name, each in fields.items()}
        assert_never(template)


def _origin(line: str) -> Origin:
    file, _, number = line.rpartition(":")
    return Origin(file, int(number)) if number.isdecimal() else Origin(line)


def play(
    graph: Graph,
    state: State,
    arguments: Mapping[str, object],
    outputs: Mapping[int, OutputType],
    called: Replay[Called] | None = None,
) -> object:
    """Run a verified graph on `state`; what its program returns. `called` gets each call as it is added, and isn't ended."""
    return _Player(graph, state, arguments, outputs, called).run()
