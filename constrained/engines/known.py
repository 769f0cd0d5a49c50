"""Grammars whose first bytes are known, as those that were cut from a prompt's end are: one cursor writes them, another goes on.

Made by `continued.py` and the compiler, around any engine's grammar.
"""

from collections.abc import Sequence

from branchpoint.constrained.engines.choice import ChoiceGrammar
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher, Residue
from branchpoint.constrained.mask import allocate
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["KnownMatcher", "PrefixedGrammar"]


class PrefixedGrammar:
    """`prefix` (at least one byte), then a sentence of `inner`: for what the engine can't take into its own language (no UTF-8).

    Tokens don't reach over the prefix's end, so the cut there is fixed: right, but less free than healing inside the engine.
    """

    def __init__(self, vocabulary: Vocabulary, prefix: bytes, inner: CompiledGrammar) -> None:
        self._vocabulary = vocabulary
        self._literal = ChoiceGrammar(vocabulary, [prefix])
        self._inner = inner

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What the inner grammar narrowed, and the fixed cut."""
        return (*self._inner.narrowed, Narrowing("", "", "no token reaches over the end of the healed bytes"))

    def matcher(self) -> "KnownMatcher":
        """A new cursor at the start of the prefix."""
        return KnownMatcher(self._vocabulary, self._literal.matcher(), self._inner.matcher(), shared=False)


class KnownMatcher:
    """A cursor whose first bytes are known (`grammar.Matcher`): `known` follows these, `inner` what comes behind them.

    If `shared`, the inner cursor reads the known bytes too, so that a token may reach over their end.
    """

    def __init__(self, vocabulary: Vocabulary, known: Matcher, inner: Matcher, *, shared: bool) -> None:
        self._known = known
        self._inner = inner
        self._shared = shared
        self._row = allocate(1, vocabulary.size)[0]
        self._within = 0  # tokens with which the known bytes are written
        self._behind = 0

    def fill(self, row: MaskRow) -> None:
        """Tokens of the known bytes until they are written, then the inner grammar's."""
        if self._shared or self._known.can_end:
            self._inner.fill(row)
            self._heal(row)
        else:
            self._known.fill(row)

    def fill_loosely(self, row: MaskRow) -> Residue | None:
        """As `fill`; what the inner grammar leaves to ask is left here too."""
        if self._shared or self._known.can_end:
            residue = self._inner.fill_loosely(row)
            self._heal(row)
            return residue
        self._known.fill(row)
        return None

    def _heal(self, row: MaskRow) -> None:
        """Take out of a row of the inner grammar what doesn't go on with the known bytes."""
        if not self._known.can_end:
            self._known.fill(self._row)
            row[: len(self._row)] &= self._row
            row[len(self._row) :] = 0

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        taken = 0
        while taken < len(tokens) and not self._known.can_end:
            token = tokens[taken : taken + 1]
            if not self._known.advance(token):
                return taken
            if self._shared and not self._inner.advance(token):
                self._known.rollback(1)
                return taken
            self._within += 1
            taken += 1
        rest = self._inner.advance(tokens[taken:]) if taken < len(tokens) else 0
        self._behind += rest
        return taken + rest

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        if not 0 <= count <= self._behind + self._within:
            raise MatcherError(f"Expected to take back 0 to {self._behind + self._within} tokens, got {count}.")
        behind = min(count, self._behind)
        within = count - behind
        self._inner.rollback(behind + (within if self._shared else 0))
        self._known.rollback(within)
        self._behind -= behind
        self._within -= within

    def forced(self) -> list[int]:
        """What the inner grammar forces once the known bytes are written."""
        return self._inner.forced() if self._known.can_end else []

    @property
    def can_end(self) -> bool:
        """Whether the known bytes are written and the inner value is complete."""
        return self._known.can_end and self._inner.can_end

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        return self._known.can_end and self._inner.finished
