"""Branches of a state: a fork is a node of the program, not a barrier; each branch goes on as soon as its parent is ready.

Made by `State.fork` and `State.copy`; joining binds the branches' variables, as lists, in the parent.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, overload

from branchpoint.lang.caller import caller
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.expr import Expr, ExprLike
from branchpoint.lang.race import Best, First, Vote, adecide, decide, settle
from branchpoint.lang.state import State
from branchpoint.lang.variables import Joined

__all__ = ["Aside", "Copy", "ForExpr", "Fork"]

JoinMode = Literal["gather_variable", "concate_and_append"]
ForExpr = ExprLike | Sequence[ExprLike] | Callable[[int], ExprLike]
"""What may be added to a fork: one expression for all, one for each, or a function of the branch number."""


class Fork(Sequence[State]):
    """The branches of a fork, in order. `with s.fork(2) as (a, b):` joins at its end."""

    def __init__(self, parent: State, branches: tuple[State, ...]) -> None:
        self._parent = parent
        self._branches = branches
        self._chosen = False

    @property
    def parent(self) -> State:
        """The state that was forked."""
        return self._parent

    def __len__(self) -> int:
        return len(self._branches)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[State, ...]: ...
    def __getitem__(self, index: int | slice) -> State | tuple[State, ...]:
        return self._branches[index]

    def __setitem__(self, index: int, state: State) -> None:
        """Only what `fork[i] += x` does: put back the branch that was there."""
        if self._branches[index] is not state:
            raise ProgramMistake("A branch of a fork can't be replaced; add to it with +=.")

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)

    def __iadd__(self, added: ForExpr) -> "Fork":
        if isinstance(added, Expr | str):
            each: list[ExprLike] = [added] * len(self)
        elif isinstance(added, Sequence):
            if len(added) != len(self):
                raise ProgramMistake(f"The fork has {len(self)} branches, the list {len(added)} expressions; give one for each.")
            each = list(added)
        elif callable(added):
            each = [added(number) for number in range(len(self))]
        else:
            raise ProgramMistake(f"A fork takes an expression, a list of them or a function, got {type(added).__name__}.")
        origin = caller()
        for branch, expression in zip(self._branches, each, strict=True):
            branch.add(expression, origin)
        return self

    def join(self, mode: JoinMode = "gather_variable", *, on_error: Literal["raise", "return"] = "raise") -> None:
        """Bind every variable that a branch set, in the parent, to the list of the branches' values (None where one set none).

        Nothing waits here. Reading such a list raises what a branch failed with, or with `on_error="return"` holds the error in
        that branch's place. Mode `concate_and_append` instead adds the branches' texts to the parent, one after another.
        """
        if on_error not in ("raise", "return"):
            raise ProgramMistake(f"on_error must be 'raise' or 'return', got {on_error!r}.")
        for branch in self._branches:
            branch.place.tolerant |= on_error == "return"
            branch.place.joined = True
        if mode == "concate_and_append":
            self._parent.splice(self._branches)
            return
        if mode != "gather_variable":
            raise ProgramMistake(f"join takes 'gather_variable' or 'concate_and_append', got {mode!r}.")
        names = dict.fromkeys(name for branch in self._branches for name in branch.own)
        for name in names:
            self._parent.bind(name, Joined(name, [branch.own.get(name) for branch in self._branches], on_error))

    def first(self, fits: Callable[[State], object] | None = None) -> State:
        """The first branch to finish without a failure for which `fits` is true; the others are aborted at once.

        The parent gets the chosen branch's variables as they are. `with` doesn't join then. Raises ProgramError where none fits.
        """
        return self._choose(decide(self._branches, First(fits)))

    async def afirst(self, fits: Callable[[State], object] | None = None) -> State:
        """As `first`, waiting in the caller's event loop."""
        return self._choose(await adecide(self._branches, First(fits)))

    def best(self, score: Callable[[State], float], enough: float | None = None) -> State:
        """The branch with the highest score, as `first`; one that reaches `enough` is taken at once."""
        return self._choose(decide(self._branches, Best(score, enough)))

    async def abest(self, score: Callable[[State], float], enough: float | None = None) -> State:
        """As `best`, waiting in the caller's event loop."""
        return self._choose(await adecide(self._branches, Best(score, enough)))

    def vote(self, name: str) -> Any:
        """The value of `name` that most branches have, which the parent's `name` is then; failed branches have no vote.

        As soon as the others can't change it they are aborted. Raises ProgramError where all failed.
        """
        return self._choose(decide(self._branches, Vote(name, len(self))), name)[name]

    async def avote(self, name: str) -> Any:
        """As `vote`, waiting in the caller's event loop."""
        return self._choose(await adecide(self._branches, Vote(name, len(self))), name)[name]

    def _choose(self, winner: State, name: str | None = None) -> State:
        self._chosen = True
        settle(self._parent, winner, name)
        return winner

    def __enter__(self) -> "Fork":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and not self._chosen:
            self.join()


class Aside(State):
    """A fork of one of which nothing comes back; what still runs when an exception passes is aborted."""

    def __enter__(self) -> "Aside":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.place.context.drop([self.place], "an exception left its scope")


class Copy(State):
    """A fork of one; as a context manager it gives its variables back to the parent as they are."""

    def __enter__(self) -> "Copy":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self.parent is not None:
            for name, variable in self.own.items():
                self.parent.bind(name, variable)
