"""Runs a program's function once on a state that only writes down what is added: the nodes of its graph (LANGUAGE P6).

Called by `graph.py` and by `lint.py`. No call is performed; what needs a value that isn't there raises Untraceable.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, cast

import msgspec

from branchpoint.constrained.spec import JsonSchema
from branchpoint.lang import nodes as op
from branchpoint.lang.attempt import Attempt, Mark
from branchpoint.lang.caller import caller
from branchpoint.lang.choices import ChoicesMethod, method_of
from branchpoint.lang.errors import Origin, ProgramError, ProgramMistake
from branchpoint.lang.expr import Gen, Leaf, RoleBegin, RoleEnd, Select, Slot
from branchpoint.lang.expr import Literal as Constant
from branchpoint.lang.fork import Aside, Copy, Fork, JoinMode
from branchpoint.lang.ledger import Pending, Place
from branchpoint.lang.nodes import Graph, Kind
from branchpoint.lang.options import merge
from branchpoint.lang.placeholder import PRIVATE, TRACED, Placeholder, Placeholders
from branchpoint.lang.result import Meta
from branchpoint.lang.state import State
from branchpoint.lang.stream import Reader
from branchpoint.lang.stretch import GrammarScope
from branchpoint.lang.types import OutputType
from branchpoint.lang.variables import Fixed, Joined, Scope, Variable

if TYPE_CHECKING:
    from branchpoint.lang.context import RunContext

__all__ = ["Trace", "TraceFork", "TraceState"]


class Trace:
    """What was written down. `outputs` are the types of gens by node, which are Python's, so not in the graph; `read`
    the nodes whose values the program asked for; `last` the last node of each state, which text that follows text joins.

    Stands in for a run's context where states ask for one: whether it is open, what its program is called.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self.lock = threading.RLock()
        self.nodes: list[op.Node] = []
        self.last: dict[int, int] = {}
        self.origins: list[Origin] = []
        self.outputs: dict[int, OutputType] = {}
        self.placeholders = Placeholders()
        self.read: set[int] = set()
        self.states = 0

    def check_open(self) -> None:
        """It is always open."""

    def enter(self, state: "TraceState") -> None:
        """Give a new state its number."""
        state.number, self.states = self.states, self.states + 1

    def argument(self, name: str) -> Placeholder:
        """A placeholder for the argument `name`."""
        return self.placeholders.make(op.Parameter(name), f"the argument {name!r}")

    def add(self, node: op.Node, origin: Origin) -> int:
        """Write a node down; its number."""
        self.last[node.state] = len(self.nodes)
        self.nodes.append(node)
        self.origins.append(origin)
        return len(self.nodes) - 1

    def run(self, function: Callable[[State], object], parameters: tuple[str, ...], origin: Origin) -> Graph:
        """Run `function`, written at `origin`, on a state of this trace, and give the graph. Raises Untraceable."""
        state = TraceState(Place(cast("RunContext", self)))
        token = TRACED.set(self.placeholders)
        try:
            returned = function(state)
        finally:
            TRACED.reset(token)
        if self.placeholders.problem is not None:
            raise self.placeholders.problem  # the program caught it, and would have gone another way
        self.placeholders.after = origin
        variables = {name: self._variable(state.variable(name)) for name in state.variables()}
        returns = self.placeholders.template(returned)
        return Graph(program=self.program, parameters=parameters, nodes=tuple(self.nodes), variables=variables, returns=returns)

    def _variable(self, variable: Variable) -> op.Template:
        return self.placeholders.template(variable.read())


class _Traced:
    """A variable that a call sets."""

    def __init__(self, trace: Trace, placeholder: Placeholder) -> None:
        self._trace = trace
        self._placeholder = placeholder

    def needs(self) -> tuple[Pending, ...]:
        return ()

    def read(self) -> object:
        if isinstance(self._placeholder.template, op.Of):
            self._trace.read.add(self._placeholder.template.of)
        return self._placeholder

    def meta(self) -> Meta:
        self._trace.placeholders.refuse("it asks for the metadata of a call")


class _Untold(_Traced):
    """A variable that no node of a graph stands for: the text of a scope."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def read(self) -> object:
        self._trace.placeholders.refuse("it takes the text of a scope as a value")


class TraceState(State):
    """A state that writes down what is added."""

    number = 0

    @property
    def _trace(self) -> Trace:
        return cast(Trace, self.place.context)

    def check_alive(self) -> None:
        """See `State`."""

    def add_leaf(self, leaf: Leaf, origin: Origin) -> None:
        """See `State`."""
        trace, here = self._trace, {"state": self.number, "line": str(origin)}
        match leaf:
            case Constant(text):
                for part in trace.placeholders.split(text):
                    self._add_text(part, origin)
            case Slot():
                self._add_text(cast(Placeholder, leaf), origin)
            case RoleBegin(name) | RoleEnd(name):
                self._role = name if isinstance(leaf, RoleBegin) else None
                trace.add(op.Role(role=name, opens=isinstance(leaf, RoleBegin), **here), origin)  # type: ignore[arg-type]  # one dict for all nodes
            case Gen():
                if not isinstance(leaf.pick, int):
                    trace.placeholders.refuse("it picks a sample by a function")
                if leaf.staged:
                    trace.placeholders.refuse("it tells thinking apart from the answer, or offers tools")
                kind, options = _kind(leaf.output), merge(leaf.options)
                node = op.Gen(name=leaf.name, kind=kind, constraint=leaf.constraint, options=options, pick=leaf.pick, **here)  # type: ignore[arg-type]  # as above
                self._check_plain(msgspec.json.encode(node).decode())
                self._call(node, leaf.name, leaf.output, origin)
            case Select():
                if not _is_known(leaf.method):
                    trace.placeholders.refuse("it selects by a function")
                select = op.Select(
                    name=leaf.name,
                    choices=leaf.choices,
                    method=leaf.method.name,
                    temperature=leaf.temperature,
                    seed=leaf.seed,
                    **here,  # type: ignore[arg-type]  # as above
                )
                self._check_plain(msgspec.json.encode(select).decode())
                self._call(select, leaf.name, None, origin)

    def _check_plain(self, encoded: str) -> None:
        if PRIVATE in encoded or ascii(PRIVATE)[1:-1] in encoded:
            self._refuse("it has an option or a choice made of a value that isn't there before the program runs")

    def _add_text(self, part: str | Placeholder, origin: Origin) -> None:
        nodes, line, before = self._trace.nodes, str(origin), self._trace.last.get(self.number)
        if isinstance(part, Placeholder):
            template: op.Of | op.Parameter = part.template
            if isinstance(template, op.Of):
                self._trace.add(op.Value(of=template.of, state=self.number, line=line), origin)
            else:
                self._trace.add(op.Argument(name=template.name, state=self.number, line=line), origin)
        elif before is not None and isinstance(last := nodes[before], op.Text):
            nodes[before] = op.Text(text=last.text + part, state=self.number, line=last.line)
        else:
            self._trace.add(op.Text(text=part, state=self.number, line=line), origin)

    def _call(self, node: op.Gen | op.Select, name: str | None, output: OutputType | None, origin: Origin) -> None:
        number = self._trace.add(node, origin)
        if output is not None:
            self._trace.outputs[number] = output
        if name is not None:
            self.bind(name, _Traced(self._trace, self._trace.placeholders.make(op.Of(number), f"the value of {name!r}")))

    def bind(self, name: str, variable: Variable) -> None:
        """See `State`."""
        known = isinstance(variable, _Traced | Fixed | Joined)
        super().bind(name, variable if known else _Untold(self._trace) if isinstance(variable, Scope) else variable)

    def _children(self, size: int, make: Callable[[Place, State], State]) -> tuple[State, ...]:
        return self._branch(size, TraceState)

    def _branch(self, size: int, kind: "type[TraceState]") -> tuple["TraceState", ...]:
        fork, self.forks = self.forks, self.forks + 1
        branches = tuple(kind(self.place.child(fork, number, size), self) for number in range(size))
        origin = caller()
        self._trace.add(
            op.Fork(children=tuple(branch.number for branch in branches), state=self.number, line=str(origin)), origin
        )
        return branches

    def fork(self, size: int = 1) -> Fork:
        """See `State`."""
        if isinstance(size, Placeholder):
            self._refuse("it forks into a number of branches that isn't there before the program runs")
        return TraceFork(self, super().fork(size)[:])

    def copy(self) -> State:
        """See `State`."""
        return self._branch(1, _TraceCopy)[0]

    def scope(self) -> Aside:
        """See `State`."""
        return cast(Aside, self._branch(1, _TraceAside)[0])

    def splice(self, branches: tuple[State, ...]) -> None:
        """See `State`."""
        self.join(branches, append=True)

    def join(self, branches: Sequence[State], *, append: bool) -> None:
        """Write down that branches come together here."""
        children, origin = tuple(cast(TraceState, branch).number for branch in branches), caller()
        self._trace.add(op.Join(children=children, append=append, state=self.number, line=str(origin)), origin)

    def _refuse(self, what: str) -> NoReturn:
        self._trace.placeholders.refuse(what)

    def text(self) -> str:
        """Refused."""
        self._refuse("it takes the state's text as a value")

    def messages(self) -> list[dict[str, str]]:
        """Refused."""
        self._refuse("it takes the conversation as a value")

    def text_iter(self, name: str | None = None, *, cancel: bool = False) -> Reader[str]:
        """Refused."""
        self._refuse("it reads a stream")

    def error(self) -> ProgramError | None:
        """Refused."""
        self._refuse("it asks whether something failed, or chooses between branches")

    def sync(self) -> None:
        """Nothing is waited for."""

    def grammar(self, wanted: object, name: str | None = None) -> GrammarScope:
        """Refused."""
        self._refuse("it holds a stretch of text to one grammar")

    def mark(self) -> Mark:
        """Refused."""
        self._refuse("it marks a place to go back to")

    def attempt(self, retries: int = 3, check: Callable[[State], object] | None = None) -> Attempt:
        """Refused."""
        self._refuse("it attempts something that may be done again")


class _TraceCopy(TraceState, Copy):
    """A copy that writes down."""


class _TraceAside(TraceState, Aside):
    """A scope that writes down."""


class TraceFork(Fork):
    """Branches that write down where they join."""

    def join(self, mode: JoinMode = "gather_variable", *, on_error: Literal["raise", "return"] = "raise") -> None:
        """See `Fork`."""
        if on_error == "return":
            cast(TraceState, self[0])._refuse("it goes on where a branch fails")
        super().join(mode, on_error=on_error)
        if mode == "gather_variable":
            cast(TraceState, self.parent).join(self, append=False)


def _is_known(method: ChoicesMethod) -> bool:
    try:
        return method_of(method.name) is method
    except ProgramMistake:
        return False


def _kind(output: OutputType | None) -> Kind:
    if output is None:
        return "text"
    if output.name in ("int", "float", "bool"):
        return cast(Kind, output.name)
    return "json" if isinstance(output.constraint, JsonSchema) else "text"
