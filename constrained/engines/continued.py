"""What is left of a grammar behind a text: outputs that go on a sentence which a program began, with literals or earlier outputs.

Around another engine's grammar; its cursors start behind the text. What is healed of the text is written again.
"""

from branchpoint.constrained.completion import pieces
from branchpoint.constrained.engines.known import KnownMatcher
from branchpoint.constrained.engines.steered import SteerableGrammar
from branchpoint.constrained.errors import NotInGrammar, shorten
from branchpoint.constrained.grammar import CompiledGrammar, Matcher
from branchpoint.constrained.healing import compile_prefix
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["ContinuedGrammar", "continue_grammar"]

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
        if self._healing is None:
            return matcher
        return KnownMatcher(self._vocabulary, self._healing.matcher(), matcher, shared=True)


def _shown(text: bytes) -> str:
    return shorten(repr(text.decode(errors="replace")))
