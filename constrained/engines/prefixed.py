"""A literal before another grammar, for prefixes that the engine can't take into its own language (bytes that are no UTF-8).

Tokens don't reach over the literal's end, so the cut there is fixed: right, but less free than healing inside the engine.
"""

from collections.abc import Sequence

from branchpoint.constrained.engines.choice import ChoiceGrammar, ChoiceState
from branchpoint.constrained.engines.states import StateMatcher
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher, Residue
from branchpoint.constrained.mask import forbid
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["PrefixedGrammar", "PrefixedMatcher"]


class PrefixedGrammar:
    """`prefix` (at least one byte), then a sentence of `inner`."""

    def __init__(self, vocabulary: Vocabulary, prefix: bytes, inner: CompiledGrammar) -> None:
        self._vocabulary = vocabulary
        self._literal = ChoiceGrammar(vocabulary, [prefix])
        self._inner = inner

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What the inner grammar narrowed, and the fixed cut."""
        return (*self._inner.narrowed, Narrowing("", "", "no token reaches over the end of the healed bytes"))

    def matcher(self) -> "PrefixedMatcher":
        """A new cursor at the start of the prefix."""
        return PrefixedMatcher(self._vocabulary, self._literal.matcher(), self._inner.matcher())


class PrefixedMatcher:
    """A cursor that walks the literal first and the inner grammar then (`grammar.Matcher`)."""

    def __init__(self, vocabulary: Vocabulary, literal: StateMatcher[ChoiceState], inner: Matcher) -> None:
        self._vocabulary = vocabulary
        self._literal = literal
        self._inner = inner
        self._in_literal = 0
        self._in_inner = 0

    def fill(self, row: MaskRow) -> None:
        """Tokens of the literal until it is complete, then the inner grammar's."""
        if self._literal.can_end:
            self._inner.fill(row)
        else:
            self._literal.fill(row)
            forbid(row, self._vocabulary.eos)

    def fill_loosely(self, row: MaskRow) -> Residue | None:
        """As `fill`; what the inner grammar leaves to ask is left here too."""
        if self._literal.can_end:
            return self._inner.fill_loosely(row)
        self.fill(row)
        return None

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        taken = 0
        while taken < len(tokens) and not self._literal.can_end:
            if not self._literal.advance(tokens[taken : taken + 1]):
                return taken
            self._in_literal += 1
            taken += 1
        rest = self._inner.advance(tokens[taken:]) if taken < len(tokens) else 0
        self._in_inner += rest
        return taken + rest

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        if not 0 <= count <= self._in_inner + self._in_literal:
            raise MatcherError(f"Expected to take back 0 to {self._in_inner + self._in_literal} tokens, got {count}.")
        inner = min(count, self._in_inner)
        self._inner.rollback(inner)
        self._literal.rollback(count - inner)
        self._in_inner -= inner
        self._in_literal -= count - inner

    def forced(self) -> list[int]:
        """What the inner grammar forces once the literal is complete."""
        return self._inner.forced() if self._literal.can_end else []

    @property
    def can_end(self) -> bool:
        """Whether the literal is complete and the inner value too."""
        return self._literal.can_end and self._inner.can_end

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        return self._literal.can_end and self._inner.finished
