"""What is left of a grammar behind a text: outputs that go on a sentence which a program began, with literals or earlier outputs.

Around another engine's grammar; its cursors start behind the text. What is healed of the text is written again.
"""

from collections.abc import Sequence

from branchpoint.constrained.completion import pieces
from branchpoint.constrained.engines.steered import SteerableGrammar
from branchpoint.constrained.errors import NotInGrammar, shorten
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher, Residue
from branchpoint.constrained.healing import compile_prefix
from branchpoint.constrained.mask import allocate
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["ContinuedGrammar", "HealedMatcher", "continue_grammar"]

_SHOWN = 60  # characters of a text in an error


def continue_grammar(
    grammar: CompiledGrammar, vocabulary: Vocabulary, text: bytes, healed: bytes, *, whole: bool
) -> CompiledGrammar:
    """`grammar` behind `text`, whose outputs begin with `healed`; steerable if it is.

    Raises NotInGrammar where it can't take the two, or, if `whole`, where they are no sentence of it.
    """
    tokens = pieces(vocabulary, text)
    matcher = grammar.matcher()
    both = (*tokens, *pieces(vocabulary, healed))
    taken = matcher.advance(both)
    if taken < len(both):
        good, written = len(vocabulary.text(both[:taken])), text + healed
        raise NotInGrammar(
            f"The grammar can't take {_shown(written[good:][:_SHOWN])} after {_shown(written[:good][-_SHOWN:])}; "
            "what is written within it must go on a sentence of it."
        )
    if whole and not matcher.can_end:
        raise NotInGrammar(
            f"No sentence of the grammar ends after {_shown((text + healed)[-_SHOWN:])}; write or generate the rest."
        )
    if not isinstance(grammar, SteerableGrammar):
        return ContinuedGrammar(vocabulary, grammar, tokens, healed)
    start = grammar.start
    for token in tokens:
        start = grammar.completer.after(start, token)
    return SteerableGrammar(grammar.completer, ContinuedGrammar(vocabulary, grammar.inner, tokens, healed), start)


class ContinuedGrammar:
    """Behind `tokens`, which `inner` takes; outputs begin with `healed`."""

    def __init__(self, vocabulary: Vocabulary, inner: CompiledGrammar, tokens: tuple[int, ...], healed: bytes) -> None:
        self._vocabulary = vocabulary
        self._inner = inner
        self._tokens = tokens
        self._healing = compile_prefix(vocabulary, healed) if healed else None

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What the inner grammar narrowed."""
        return self._inner.narrowed

    def matcher(self) -> Matcher:
        """A new cursor behind the text."""
        matcher = self._inner.matcher()
        matcher.advance(self._tokens)
        return matcher if self._healing is None else HealedMatcher(self._vocabulary, self._healing.matcher(), matcher)


class HealedMatcher:
    """A cursor whose first bytes are known (`grammar.Matcher`): what `healing` and `inner` both take."""

    def __init__(self, vocabulary: Vocabulary, healing: Matcher, inner: Matcher) -> None:
        self._healing = healing
        self._inner = inner
        self._row = allocate(1, vocabulary.size)[0]

    def fill(self, row: MaskRow) -> None:
        """The tokens that both take."""
        self._inner.fill(row)
        self._heal(row)

    def fill_loosely(self, row: MaskRow) -> Residue | None:
        """As `fill`; what the inner cursor leaves to ask is left here too."""
        residue = self._inner.fill_loosely(row)
        self._heal(row)
        return residue

    def _heal(self, row: MaskRow) -> None:
        if not self._healing.can_end:
            self._healing.fill(self._row)
            row[: len(self._row)] &= self._row
            row[len(self._row) :] = 0

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many both accepted."""
        taken = self._healing.advance(tokens)
        accepted = self._inner.advance(tokens[:taken])
        self._healing.rollback(taken - accepted)
        return accepted

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        self._healing.rollback(count)
        self._inner.rollback(count)

    def forced(self) -> list[int]:
        """What the inner cursor forces, once the known bytes are written."""
        return self._inner.forced() if self._healing.can_end else []

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete sentence."""
        return self._healing.can_end and self._inner.can_end

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        return self._healing.can_end and self._inner.finished


def _shown(text: bytes) -> str:
    return shorten(repr(text.decode(errors="replace")))
