"""A program as data: the nodes of its graph, their JSON form, and what its results are made of.

`trace.py` makes a graph out of a program, `spec.py` verifies one from elsewhere, `play.py` runs it. Holds no Python, only nodes.
"""

from typing import Literal

import msgspec

from branchpoint.constrained.spec import Constraint
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.options import SamplingOptions

__all__ = [
    "VERSION",
    "Argument",
    "Const",
    "Fields",
    "Fork",
    "Gen",
    "Graph",
    "InvalidGraph",
    "Items",
    "Join",
    "Kind",
    "Node",
    "NodeBase",
    "Of",
    "Parameter",
    "Role",
    "Select",
    "Template",
    "Text",
    "Value",
    "Words",
    "graph_from_json",
    "graph_to_json",
]

VERSION = 1
Kind = Literal["text", "int", "float", "bool", "json"]


class InvalidGraph(ProgramMistake):
    """A graph that breaks the spec: which node, and how."""


class NodeBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True, omit_defaults=True):
    """What all nodes have: the state that they add to, and the program's line, which is there for people only."""

    state: int = 0
    line: str = ""


class Text(NodeBase, frozen=True, tag="text"):
    """Constant text."""

    text: str


class Argument(NodeBase, frozen=True, tag="argument"):
    """The text of one of the program's arguments."""

    name: str


class Value(NodeBase, frozen=True, tag="value"):
    """The text of what node `of`, a gen or select of any state, came to."""

    of: int


class Role(NodeBase, frozen=True, tag="role"):
    """Opens or closes a message."""

    role: str
    opens: bool


class Gen(NodeBase, frozen=True, tag="gen"):
    """Generates. `kind` is what the text is read as, `constraint` what it is held to."""

    name: str | None = None
    kind: Kind = "text"
    constraint: Constraint | None = None
    options: SamplingOptions = msgspec.field(default_factory=SamplingOptions)
    pick: int = 0


class Select(NodeBase, frozen=True, tag="select"):
    """Chooses."""

    choices: tuple[str, ...]
    name: str | None = None
    method: str = "total"
    temperature: float = 0.0
    seed: int | None = None


class Fork(NodeBase, frozen=True, tag="fork"):
    """Makes the states `children`, which go on from here."""

    children: tuple[int, ...]


class Join(NodeBase, frozen=True, tag="join"):
    """Brings the children of one fork together: their variables as lists, or (`append`) their texts one after another."""

    children: tuple[int, ...]
    append: bool = False


Node = Text | Argument | Value | Role | Gen | Select | Fork | Join


class _Result(msgspec.Struct, frozen=True, tag_field="is", forbid_unknown_fields=True):
    """What a result is made of."""


class Of(_Result, frozen=True, tag="value"):
    """What node `of` came to."""

    of: int


class Parameter(_Result, frozen=True, tag="argument"):
    """An argument, as it was given."""

    name: str


class Const(_Result, frozen=True, tag="const"):
    """A constant of JSON."""

    value: str | int | float | bool | None


class Words(_Result, frozen=True, tag="words"):
    """Text put together."""

    parts: "tuple[Template, ...]"


class Items(_Result, frozen=True, tag="list"):
    """A list."""

    items: "tuple[Template, ...]"


class Fields(_Result, frozen=True, tag="dict"):
    """A dict."""

    fields: "dict[str, Template]"


Template = Of | Parameter | Const | Words | Items | Fields


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program. A node is known by its place in `nodes`; state 0 is the program's own, whose `variables` are the run's."""

    version: int = VERSION
    program: str
    parameters: tuple[str, ...] = ()
    nodes: tuple[Node, ...]
    variables: dict[str, Template] = {}
    returns: Template = Const(None)


def graph_to_json(graph: Graph) -> str:
    """The graph as JSON text, a node a line."""
    head = msgspec.json.encode(msgspec.structs.replace(graph, nodes=())).decode()
    nodes = ",\n".join("  " + msgspec.json.encode(node).decode() for node in graph.nodes)
    return head.replace('"nodes":[]', f'"nodes":[\n{nodes}\n]' if nodes else '"nodes":[]', 1) + "\n"


def graph_from_json(text: str | bytes) -> Graph:
    """The graph of this text, its form checked only; `spec.verify` checks the rest. Raises InvalidGraph."""
    try:
        return msgspec.json.decode(text, type=Graph)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidGraph(f"This isn't a graph in JSON, version {VERSION}: {error}.") from None
