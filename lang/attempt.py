"""Going back: marks of where a state stood, and attempts, which go back and try again (LANGUAGE S10).

`State.mark`, `rollback` and `attempt` are made of these. What was rolled back is counted as wasted in the run's report.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from branchpoint.lang.chain import walk
from branchpoint.lang.errors import Incomplete, Origin, ProgramError, ProgramMistake
from branchpoint.lang.expr import Leaf, Literal, RoleBegin, RoleEnd
from branchpoint.lang.ledger import Entry, Pending, RoleEntry, TextEntry
from branchpoint.lang.variables import CallEntry, Thoughts, Variable

if TYPE_CHECKING:
    from branchpoint.lang.state import State
    from branchpoint.lang.stretch import Stretch

__all__ = ["Attempt", "Mark", "take_back"]

_ROLLED_BACK = "it was rolled back"


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a state stood: its last entries, role and variables, the number of its forks, the length of its log, its stretch."""

    state: "State"
    tail: Entry | None
    gate: Pending | None
    role: str | None
    variables: dict[str, Variable]
    own: dict[str, Variable]
    forks: int
    length: int
    stretch: "Stretch | None"


def _since(state: "State", mark: Mark) -> list[Entry]:
    """The entries after `mark`, in order. Raises ProgramMistake where it isn't behind the state."""
    entry, since = state.here()[0], list[Entry]()
    while entry is not mark.tail and entry is not None:
        since.append(entry)
        entry = entry.previous
    if entry is not mark.tail or mark.state is not state or len(since) != len(state.log) - mark.length:
        raise ProgramMistake("rollback takes a mark that this state made, and that wasn't itself rolled back.")
    if state.stretch is not mark.stretch:
        raise ProgramMistake(
            "rollback can't lead into or out of what s.grammar(...) holds together; mark within it or around it."
        )
    since.reverse()
    return since


def take_back(state: "State", mark: Mark) -> None:
    """Let what `state` did since `mark` have been in vain, its forks since then included. Raises ProgramMistake."""
    since = _since(state, mark)
    context, path = state.place.context, state.place.path
    gone = [
        other
        for other in context.states
        if other.place.path[: len(path)] == path
        and len(other.place.path) > len(path)
        and other.place.path[len(path)] >= mark.forks
    ]
    context.drop([other.place for other in gone], _ROLLED_BACK)
    own = [entry for other in gone for entry in other.log.so_far()]
    context.take_back([entry for entry in [*since, *own] if isinstance(entry, Pending)], _ROLLED_BACK)


class Attempt:
    """Something that may be done again. At most `retries` times after the first; each time the calls get seeds of their own.

    `with s.attempt(...):` the block runs once; what it *added* is added again, so it must only add. `for _ in s.attempt(...):`
    the block itself runs again, whatever it does. A try holds when none of its calls failed, each of its values is whole, and
    `check(s)` (if there is one) is true. After the last one the state is as before, and ProgramError is raised. Where an
    exception passes through the `with` block, the state goes back too. Who reads the text live sees what is taken back later.
    """

    def __init__(self, state: "State", retries: int, check: "Callable[[State], object] | None") -> None:
        if not isinstance(retries, int) or retries < 0:
            raise ProgramMistake(f"retries must be a number of at least 0, got {retries!r}.")
        self._state = state
        self._tries = 1 + retries
        self._check = check
        self._mark = state.mark()

    def __iter__(self) -> Iterator[int]:
        cause: Exception | None = None
        for number in range(self._tries):
            self._mark = self._state.mark()
            yield number
            held, cause = self._holds()
            if held:
                return
            self._state.rollback(self._mark)
        raise self._failed() from cause

    def __enter__(self) -> "State":
        self._mark = self._state.mark()
        return self._state

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._state.rollback(self._mark)
            return
        added = self._added()
        held, cause = self._holds()
        for _ in range(self._tries - 1):
            if held:
                return
            self._state.rollback(self._mark)
            for leaf, origin in added:
                self._state.add_leaf(leaf, origin)
            held, cause = self._holds()
        if not held:
            self._state.rollback(self._mark)
            raise self._failed() from cause

    def _holds(self) -> tuple[bool, Exception | None]:
        state, before = self._state, self._mark.variables
        try:
            state.sync()
            for name in state.variables():
                if state.variable(name) is not before.get(name):
                    state[name]
            return self._check is None or bool(self._check(state)), None
        except (ProgramError, Incomplete) as error:
            return False, error

    def _failed(self) -> ProgramError:
        place = self._state.place
        return ProgramError(
            f"None of {self._tries} tries of an attempt in program {place.context.program!r} held.",
            program=place.context.program,
            branch=place.branch,
        )

    def _added(self) -> list[tuple[Leaf, Origin]]:
        """What the block added. Raises ProgramMistake where it did something else, which can't be done again from outside."""
        since, mark, state = _since(self._state, self._mark), self._mark, self._state
        called = {id(entry) for entry in since} | {
            id(thoughts) for thoughts in state.own.values() if isinstance(thoughts, Thoughts)
        }
        changed = [state.variable(name) for name in state.variables()]
        changed = [variable for variable in changed if variable not in mark.variables.values()]
        only_adds = all(id(variable) in called for variable in changed) and state.forks == mark.forks
        only_adds &= all(entry.stretch is mark.stretch for entry in since if isinstance(entry, CallEntry))
        leaves = [(leaf, entry.origin) for entry in walk(state.here()[0], mark.tail) if (leaf := _leaf(entry)) is not None]
        if not only_adds or len(leaves) != len(since):
            raise ProgramMistake("A `with s.attempt()` block must only add to s; write `for _ in s.attempt():` for all else.")
        return leaves


def _leaf(entry: Entry) -> Leaf | None:
    match entry:
        case TextEntry(text=text):
            return Literal(text)
        case RoleEntry(role=role, opens=opens):
            return RoleBegin(role) if opens else RoleEnd(role)
        case CallEntry(expr=expr):
            return expr
    return None
