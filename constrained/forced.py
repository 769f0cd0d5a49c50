"""From bytes that the grammar forces to the tokens the tokenizer itself would make of them.

Called by matchers when the grammar leaves no choice. Where it is unsure it forces less: what isn't forced here is sampled
under the mask, which is always right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from branchpoint.constrained.vocabulary import CERTAIN_CUT, Vocabulary

__all__ = ["ForcedCut", "ForcedCuts"]

_WHOLE = 256  # bytes of output that are tokenised again in full
_LONGEST = 2048  # bytes appended at once; the rest is forced next time
_TAILS = (8, 3)  # shorter histories to try where the longer one wasn't cut canonically, in tokens


@dataclass(frozen=True, slots=True)
class ForcedCut:
    """The tokens of a forced text: the `whole` of it, and those of them that are `settled` whatever follows."""

    whole: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()


class ForcedCuts:
    """Cuts what a grammar forces; remembers the last `remembered`, since sequences under one grammar ask for the same again."""

    def __init__(self, vocabulary: Vocabulary, remembered: int = 1024) -> None:
        self._vocabulary = vocabulary
        self._cut = lru_cache(remembered)(partial(_cut, vocabulary))

    def cut(self, history: Sequence[int], forced: bytes) -> ForcedCut:
        """How (a prefix of) `forced` is cut into tokens after the output `history`.

        The end of the history is tokenised together with the forced bytes, and must come out as it is. A last token isn't
        settled where it could still merge with what follows, and where more is forced than is looked at.
        """
        if not forced:
            return ForcedCut()
        text, more = forced[:_LONGEST], len(forced) > _LONGEST
        cuts = (self._cut(tail, text) for tail in _tails(self._vocabulary, history, text))
        cut = next((cut for cut in cuts if cut is not None), ForcedCut())
        return ForcedCut(cut.settled, cut.settled) if more else cut


def _cut(vocabulary: Vocabulary, tail: tuple[int, ...], forced: bytes) -> ForcedCut | None:
    """How `forced` is cut behind `tail`; None where that doesn't come out as it is."""
    text = vocabulary.text(tail) + forced
    try:
        tokens = vocabulary.encode(text)
    except ValueError:  # bytes that this tokenizer takes only as part of longer ones
        return None
    known = not any(token in vocabulary.special for token in tokens)
    if not known or tuple(tokens[: len(tail)]) != tail or vocabulary.text(tokens) != text:
        return None
    return ForcedCut(tuple(tokens[len(tail) :]), tuple(_settled(vocabulary, tokens, len(tail), text)))


def _tails(vocabulary: Vocabulary, history: Sequence[int], forced: bytes) -> Iterator[tuple[int, ...]]:
    """Ends of the history: one that no token joins to what is before it, if there is one; else all of it, or as much as fits in
    256 bytes. Then, should these not be cut canonically, a few tokens.
    """
    length, start, following = 0, len(history), forced[:1]
    apart = not vocabulary.joins
    while start > 0 and length + len(text := vocabulary.tokens[history[start - 1]]) <= _WHOLE:
        if apart and CERTAIN_CUT.fullmatch(text[-1:] + following):
            break
        start -= 1
        length += len(text)
        following = text[:1] or following
    longest = tuple(history[start:])
    yield longest
    for count in _TAILS:
        if count < len(longest):
            yield longest[-count:]


def _settled(vocabulary: Vocabulary, tokens: Sequence[int], known: int, text: bytes) -> list[int]:
    """The tokens after the first `known` that stay the same whatever follows `text`."""
    safe = _last_certain_cut(text, _earliest_open(vocabulary, text))
    end = sum(len(vocabulary.tokens[token]) for token in tokens[:known])
    kept: list[int] = []
    for token in tokens[known:]:
        end += len(vocabulary.tokens[token])
        if end > safe:
            break
        kept.append(token)
    return kept


def _earliest_open(vocabulary: Vocabulary, text: bytes) -> int:
    """The first position from which the rest of `text` could be the beginning of a longer token."""
    for at in range(max(0, len(text) - vocabulary.longest), len(text)):
        if vocabulary.has_extension(text[at:]):
            return at
    return len(text)


def _last_certain_cut(text: bytes, limit: int) -> int:
    """The last position up to `limit` where a letter or digit is followed by what no tokenizer joins to it.

    Everywhere else (inside a word or a run of spaces or marks, before an apostrophe, from a mark into a word) what comes
    later can move a boundary in some tokenizer.
    """
    return max((found.start() + 1 for found in CERTAIN_CUT.finditer(text, 0, limit + 1)), default=0)
