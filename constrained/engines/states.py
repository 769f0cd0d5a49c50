"""A matcher for every grammar whose place is a small immutable state: choices, healing, precompiled automata.

A grammar implements `StateMachine`; `StateMatcher` adds what they share: history, end tokens, rollback, forced tokens.
"""

from collections.abc import Hashable, Sequence
from typing import Generic, Protocol, TypeVar

from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.forced import ForcedCuts
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.mask import allow
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["StateMachine", "StateMatcher"]

State = TypeVar("State", bound=Hashable)


class StateMachine(Protocol[State]):
    """A grammar as states and steps. Every reachable state can be completed. Immutable but for caches."""

    vocabulary: Vocabulary
    cuts: ForcedCuts

    def start(self) -> State:
        """The state before any token."""

    def step(self, state: State, token: int) -> State | None:
        """The state after `token`, None where it is refused; never asked for end tokens or ids out of range."""

    def row(self, state: State) -> MaskRow:
        """The tokens that `step` takes from here, without end tokens; the caller doesn't change it."""

    def accepts(self, state: State) -> bool:
        """Whether the value may end here."""

    def forced_bytes(self, state: State) -> tuple[bytes, bool]:
        """The bytes that must come next, and whether the value must end after them."""


class StateMatcher(Generic[State]):
    """The cursor of one sequence in a state machine (`grammar.Matcher`)."""

    def __init__(self, machine: StateMachine[State]) -> None:
        self._machine = machine
        self._states: list[State] = [machine.start()]
        self._tokens: list[int] = []
        self._eos = frozenset(machine.vocabulary.eos)
        self._ended = False

    def fill(self, row: MaskRow) -> None:
        """Write the tokens that may come next; end tokens exactly where the value may end."""
        state = self._states[-1]
        row[:] = 0
        if not self._ended:
            mask = self._machine.row(state)
            row[: len(mask)] = mask
        if self._machine.accepts(state):
            allow(row, self._machine.vocabulary.eos)

    def fill_loosely(self, row: MaskRow) -> None:
        """Write the tokens that may come next, exactly: the row is made already."""
        self.fill(row)

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        for count, token in enumerate(tokens):
            if not self._take(token):
                return count
        return len(tokens)

    def _take(self, token: int) -> bool:
        state = self._states[-1]
        if self._ended or not 0 <= token < self._machine.vocabulary.size:
            return False
        if token in self._eos:
            if not self._machine.accepts(state):
                return False
            self._ended = True
            following = state
        else:
            reached = self._machine.step(state, token)
            if reached is None:
                return False
            following = reached
        self._states.append(following)
        self._tokens.append(token)
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        if not 0 <= count <= len(self._tokens):
            raise MatcherError(f"Expected to take back 0 to {len(self._tokens)} tokens, got {count}.")
        if count:
            del self._states[-count:], self._tokens[-count:]
            self._ended = False

    def forced(self) -> list[int]:
        """The tokens that follow without a choice, cut as the tokenizer would."""
        if self._ended:
            return []
        forced, ends = self._machine.forced_bytes(self._states[-1])
        cut = self._machine.cuts.cut(self._tokens, forced)
        return list(cut.whole if ends else cut.settled)

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete sentence."""
        return self._machine.accepts(self._states[-1])

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        state = self._states[-1]
        return self._ended or (self._machine.accepts(state) and not self._machine.row(state).any())
