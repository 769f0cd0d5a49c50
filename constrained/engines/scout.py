"""A second cursor of a grammar, on which `steered.py` lets ways be searched for: it may break, the first one may not."""

from collections.abc import Sequence

from branchpoint.constrained.clock import Clock
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, Matcher

__all__ = ["Scout", "take"]

_PIECE = 64  # tokens that are taken between two looks at the clock


class Scout:
    """Sent behind the tokens of one sequence, again and again; what it has read already it keeps."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._cursor: Matcher | None = None
        self._tokens: list[int] = []

    def behind(self, tokens: Sequence[int], clock: Clock) -> Matcher | None:
        """The cursor behind `tokens`; None where there is no time to read them."""
        try:
            if self._cursor is None:
                self._cursor, self._tokens = self._grammar.matcher(), []
            shared = 0
            while shared < min(len(tokens), len(self._tokens)) and tokens[shared] == self._tokens[shared]:
                shared += 1
            self._cursor.rollback(len(self._tokens) - shared)
            taken = take(self._cursor, tokens[shared:], clock)
            self._tokens = list(tokens[: shared + taken])
        except MatcherError:
            self._cursor = None
        return self._cursor if len(self._tokens) == len(tokens) else None

    def drop(self) -> None:
        """Begin with a new cursor the next time: this one may have broken."""
        self._cursor = None


def take(matcher: Matcher, tokens: Sequence[int], clock: Clock) -> int:
    """Consume tokens while there is time; how many were accepted."""
    taken = 0
    while taken < len(tokens) and clock.left() > 0:
        piece = tokens[taken : taken + _PIECE]
        accepted = matcher.advance(piece)
        taken += accepted
        if accepted < len(piece):
            break
    return taken
