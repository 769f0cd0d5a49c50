"""The state of a program: what a user adds to with `+=`, reads from, and forks.

Adding never waits: it appends to the ledger, and the executor performs it when what comes before is there. Reading waits.
One state is used by one thread at a time; its forks are states of their own.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

from branchpoint.lang.attempt import Attempt, Mark, take_back
from branchpoint.lang.caller import caller
from branchpoint.lang.chain import text_of, turns_of
from branchpoint.lang.errors import Origin, ProgramError, ProgramMistake, UnknownVariable
from branchpoint.lang.expr import ExprLike, Gen, Leaf, Literal, RoleBegin, RoleEnd, Select, Slot, check_roles, flatten, role
from branchpoint.lang.ledger import Entry, Pending, Place, RoleEntry, Splice, TextEntry
from branchpoint.lang.pieces import Log, read_so_far, read_variable
from branchpoint.lang.result import Meta
from branchpoint.lang.scopes import RoleScope, TextScope
from branchpoint.lang.stream import Reader, Replay
from branchpoint.lang.stretch import GrammarScope, Stretch
from branchpoint.lang.variables import CallEntry, Fixed, Insert, Thoughts, Variable, thoughts_of

if TYPE_CHECKING:
    from branchpoint.lang.fork import Aside, Fork

__all__ = ["State"]


class State:
    """A ledger of text and calls, with the variables that they set. Made by a run, or by forking another."""

    def __init__(self, place: Place, parent: "State | None" = None) -> None:
        self.place = place
        self.parent = parent
        self.log: Log = Replay(place.context.lock)
        self._base = parent._tail if parent is not None else None
        self._tail: Entry | None = self._base
        self._gate: Pending | None = parent._gate if parent is not None else None
        self._role: str | None = parent._role if parent is not None else None
        self.stretch: Stretch | None = parent.stretch if parent is not None else None
        self._variables: dict[str, Variable] = dict(parent._variables) if parent is not None else {}
        self.own: dict[str, Variable] = {}  # what this state set itself, not its parent
        self._calls = 0
        self.forks = 0
        place.context.enter(self)

    def __repr__(self) -> str:
        return f"<State of {self.place.context.program!r}, branch {self.branch}, variables {list(self._variables)}>"

    @property
    def branch(self) -> tuple[int, ...]:
        """The way of forks to this state: the branch number at each fork, () for the program's own state."""
        return self.place.branch

    def __iadd__(self, expression: ExprLike) -> Self:
        self.check_alive()
        self.add(expression)
        return self

    def add(self, expression: ExprLike, origin: Origin | None = None) -> None:
        """As `+=`, but what is added to a failed state just fails with it: one branch of a group must not stop the others."""
        leaves = tuple(flatten(expression))
        check_roles(leaves, self._role)
        if self.stretch is not None:
            self.stretch.check(leaves)
        self.place.context.check_open()
        origin = origin or caller()
        for leaf in leaves:
            self.add_leaf(leaf, origin)

    def check_alive(self) -> None:
        """Raise ProgramError where the run is over, the state was given up, or it is known to have failed."""
        self.place.context.check_open()
        if (why := self.place.ended) is not None:
            raise ProgramError(f"Branch {self.branch} of {self.place.context.program!r} can't go on: {why}.", branch=self.branch)
        if self._gate is not None:
            self._gate.check()

    def add_leaf(self, leaf: Leaf, origin: Origin) -> None:
        """Add one leaf, written at `origin`."""
        match leaf:
            case Literal(text):
                self._tail = TextEntry(self._tail, origin, text)
                self.log.put(self._tail)
            case RoleBegin(name) | RoleEnd(name):
                opens = isinstance(leaf, RoleBegin)
                self._role = name if opens else None
                self._submit(RoleEntry(self._tail, origin, self.place, self._gate, role=name, opens=opens))
            case Slot(source):
                self._submit(Insert(self._tail, origin, self.place, self._gate, variable=cast(Variable, source)))
            case Gen() | Select():
                entry = CallEntry(self._tail, origin, self.place, self._gate, expr=leaf, index=self._calls)
                entry.stretch = self.stretch
                self.place.latest = self._calls
                self._calls += 1
                self._submit(entry)
                if leaf.name is not None:
                    self.bind(leaf.name, entry)
                    if entry.thoughts is not None:
                        self.bind(thoughts_of(leaf.name), Thoughts(entry))

    def _submit(self, entry: Pending) -> None:
        self.place.context.submit(entry)
        self._tail = self._gate = entry
        self.log.put(entry)

    def here(self) -> tuple[Entry | None, Pending | None]:
        """The last entry, and the last that has to be waited for."""
        return self._tail, self._gate

    def bind(self, name: str, variable: Variable) -> None:
        """Let `name` stand for `variable` from here on."""
        self._variables[name] = self.own[name] = variable

    def __setitem__(self, name: str, value: object) -> None:
        self.bind(name, Fixed(name, value))

    # reading

    def variable(self, name: str) -> Variable:
        """What `name` stands for. Raises UnknownVariable."""
        try:
            return self._variables[name]
        except KeyError:
            if self._gate is not None and self._gate.done.is_set:
                self._gate.check()  # a line that failed may be why it is missing
            known = ", ".join(map(repr, self._variables)) or "none"
            raise UnknownVariable(f"The state has no variable {name!r}; it has {known}.") from None

    def __getitem__(self, name: str) -> Any:
        return self.variable(name).read()

    def __contains__(self, name: str) -> bool:
        return name in self._variables

    def get(self, name: str, default: Any = None) -> Any:
        """The value of `name`, or `default` where no line sets it."""
        return self.variable(name).read() if name in self._variables else default

    def variables(self) -> tuple[str, ...]:
        """The names that are set, in the order in which they first were."""
        return tuple(self._variables)

    def meta(self, name: str) -> Meta:
        """What is known of the call that set `name`: finish reason, counts, logprobs, choices."""
        return self.variable(name).meta()

    def get_meta_info(self, name: str) -> dict[str, object]:
        """`meta(name)` as a dictionary."""
        return self.meta(name).as_dict()

    def sync(self) -> None:
        """Wait until everything added so far is there."""
        if self._gate is not None:
            self._gate.wait()

    async def ready(self) -> None:
        """Wait, in the caller's event loop, until everything added so far is there; reading then takes no time."""
        if self._gate is not None:
            await self._gate.done.reached()
            self._gate.check()

    async def aget(self, name: str) -> Any:
        """`s[name]`, waiting in the caller's event loop."""
        variable = self.variable(name)
        for need in variable.needs():
            await need.done.reached()
        return variable.read()

    def error(self) -> ProgramError | None:
        """What the state failed with, None where nothing did. Waits, and counts as having seen it."""
        try:
            self.sync()
        except ProgramError as error:
            return error
        return None

    def text(self) -> str:
        """The whole text, the chat template's own included."""
        self.sync()
        return text_of(self._tail)

    def messages(self) -> list[dict[str, str]]:
        """The conversation: `role` and `content` of each message; text outside roles isn't in it."""
        self.sync()
        return [
            {"role": turn.role, "content": "".join(segment.text for segment in turn.content)}
            for turn in turns_of(self._tail)
            if turn.role is not None
        ]

    def text_iter(self, name: str | None = None, *, cancel: bool = False) -> Reader[str]:
        """The text of `name`, or the whole text that was added so far, as it comes; for `for` or `async for`.

        `cancel`: closing the only reader of a call aborts the call. To read to the end of a run, ask the run.
        """
        abort = self.place.context.abort if cancel else None
        if name is None:
            return read_so_far(self._tail, abort)
        return read_variable(name, self.variable(name), abort)

    def text_async_iter(self, name: str | None = None, *, cancel: bool = False) -> Reader[str]:
        """`text_iter` by its other name."""
        return self.text_iter(name, cancel=cancel)

    # structure

    def fork(self, size: int = 1) -> "Fork":
        """`size` states that go on from here, each on its own. Nothing waits and nothing is copied."""
        from branchpoint.lang.fork import Fork

        if not isinstance(size, int) or size < 1:
            raise ProgramMistake(f"fork needs a number of branches of at least 1, got {size!r}.")
        self.check_alive()
        return Fork(self, self._children(size, State))

    def copy(self) -> "State":
        """One state that goes on from here. As a context manager, its variables come back as they are."""
        from branchpoint.lang.fork import Copy

        self.check_alive()
        (child,) = self._children(1, lambda place, parent: Copy(place, parent))
        return child

    def _children(self, size: int, make: "Callable[[Place, State], State]") -> tuple["State", ...]:
        fork, self.forks = self.forks, self.forks + 1
        self.place.latest = None
        return tuple(make(self.place.child(fork, number, size), self) for number in range(size))

    def scope(self) -> "Aside":
        """`with s.scope() as t:` a state that goes on from here, of which nothing comes back, neither text nor variables."""
        from branchpoint.lang.fork import Aside

        self.check_alive()
        (child,) = self._children(1, lambda place, parent: Aside(place, parent))
        return cast(Aside, child)

    def mark(self) -> Mark:
        """Where the state stands now, to `rollback` to."""
        variables, own = dict(self._variables), dict(self.own)
        return Mark(self, self._tail, self._gate, self._role, variables, own, self.forks, len(self.log), self.stretch)

    def rollback(self, mark: Mark) -> None:
        """Go back to `mark`: text, variables and role. What still runs since then is aborted; a failure since then is forgotten.

        Raises ProgramMistake where the mark isn't one of this state's, or lies in what was rolled back before.
        """
        self.place.context.check_open()
        take_back(self, mark)
        self.log.rewind(mark.length)
        self._tail, self._gate, self._role = mark.tail, mark.gate, mark.role
        self._variables, self.own = dict(mark.variables), dict(mark.own)

    def attempt(self, retries: int = 3, check: "Callable[[State], object] | None" = None) -> Attempt:
        """`with s.attempt():` what is added inside holds if no call of it fails and `check(s)` is true; else it is done again.

        See `Attempt`; `for _ in s.attempt():` runs the block itself again.
        """
        return Attempt(self, retries, check)

    def splice(self, branches: "tuple[State, ...]") -> None:
        """Add the text that these branches of one fork added, one after another."""
        self.check_alive()
        gates = tuple(branch._gate for branch in branches if branch._gate is not None)
        tails = tuple(branch._tail for branch in branches)
        base = branches[0]._base
        self._submit(Splice(self._tail, caller(), self.place, self._gate, base=base, tails=tails, gates=gates))

    def grammar(self, wanted: object, name: str | None = None) -> GrammarScope:
        """`with s.grammar(wanted, "x"):` what is added inside is one sentence of what a gen could be held to; `x` is its value.

        A gen writes what may come where it stands, up to its `stop`; text that can't stand there fails before any token.
        """
        return GrammarScope(self, wanted, name)

    def var_scope(self, name: str) -> TextScope:
        """`with s.var_scope("x"):` binds `x` to the text that is added inside."""
        return TextScope(self, name)

    def system(self, expression: ExprLike | None = None) -> RoleScope:
        """A system message: add `expression`, or what is added inside `with`."""
        return self._scoped("system", expression)

    def user(self, expression: ExprLike | None = None) -> RoleScope:
        """A user's message: add `expression`, or what is added inside `with`."""
        return self._scoped("user", expression)

    def assistant(self, expression: ExprLike | None = None) -> RoleScope:
        """The model's message: add `expression`, or what is added inside `with`."""
        return self._scoped("assistant", expression)

    def tool(self, expression: ExprLike | None = None) -> RoleScope:
        """A tool's answer: add `expression`, or what is added inside `with`."""
        return self._scoped("tool", expression)

    def _scoped(self, name: str, expression: ExprLike | None) -> RoleScope:
        if expression is not None:
            self += role(name, expression)
        return RoleScope(self, name)
