"""A stretch of a state's text that is one sentence of a grammar: literals, gens and selects, walked by one parse.

`State.grammar` opens one; `request.py` tells the backend, with each call within, what is written of the sentence.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from branchpoint.constrained.spec import Constraint, Written
from branchpoint.lang.chain import text_of
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.expr import Gen, Leaf, RoleBegin, RoleEnd
from branchpoint.lang.ledger import Entry, Pending
from branchpoint.lang.options import SamplingOptions
from branchpoint.lang.types import output_type
from branchpoint.lang.variables import Scope

if TYPE_CHECKING:
    from branchpoint.lang.state import State

__all__ = ["GrammarScope", "Sentence", "Stretch"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is added to a ledger after `base`, held to `constraint`. If `whole`, nothing more comes."""

    constraint: Constraint
    base: Entry | None
    whole: bool = False

    def check(self, leaves: Iterable[Leaf]) -> None:
        """Raise ProgramMistake where a leaf can't be part of it."""
        for leaf in leaves:
            if isinstance(leaf, RoleBegin | RoleEnd):
                raise ProgramMistake("A message can't begin or end within s.grammar(...): a template's text is in no grammar.")
            if isinstance(leaf, Gen) and (leaf.constraint is not None or leaf.staged):
                raise ProgramMistake("Within s.grammar(...) a gen has no type, constraint, tools or reasoning of its own.")

    def written(self, tail: Entry | None, more: str = "", *, whole: bool = False) -> Written:
        """What it comes to up to `tail`, which is settled, and `more` behind it."""
        return Written(text_of(tail, self.base) + more, whole or self.whole)


class Sentence(Scope):
    """The text of a stretch, as `parse` reads it."""

    def __init__(
        self, name: str, base: Entry | None, tail: Entry | None, gate: Pending | None, parse: Callable[[str], object]
    ) -> None:
        super().__init__(name, base, tail, gate)
        self._parse = parse

    def read(self) -> object:
        """The value."""
        return self._parse(str(super().read()))


class GrammarScope:
    """`with s.grammar(wanted, name):`."""

    def __init__(self, state: "State", wanted: object, name: str | None) -> None:
        self._state = state
        self._name = name
        self._output = output_type(wanted)
        if self._output.constraint is None:
            raise ProgramMistake(
                "s.grammar(...) takes what a gen can be held to: a type, a schema, regex(...), ebnf(...); not str."
            )
        self._constraint = self._output.constraint

    def __enter__(self) -> "State":
        state = self._state
        if state.stretch is not None:
            raise ProgramMistake("s.grammar(...) can't stand within another one: its text is one sentence already.")
        state.stretch = Stretch(self._constraint, state.here()[0])
        return state

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        state, stretch = self._state, self._state.stretch
        assert stretch is not None, "only this scope closes what it opened"
        try:
            if error is None:  # a call that writes nothing: the backend says whether the sentence is whole
                state.stretch = replace(stretch, whole=True)
                state += Gen(None, options=SamplingOptions(max_tokens=0, min_tokens=0, n=1, stop=(), close="cut"))
                if self._name is not None:
                    state.bind(self._name, Sentence(self._name, stretch.base, *state.here(), self._output.parse))
        finally:
            state.stretch = None
