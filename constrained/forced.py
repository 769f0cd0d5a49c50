"""From bytes that the grammar forces to the tokens the tokenizer itself would make of them.

Called by matchers when the grammar leaves no choice. Where it is unsure it forces less: what isn't forced here is sampled
under the mask, which is always right.
"""

from collections.abc import Sequence

from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["canonical_tokens"]

_WHOLE = 256  # bytes of output that are tokenised again in full
_LONGEST = 2048  # bytes appended at once; the rest is forced next time
_TAILS = (8, 3)  # shorter histories to try where the longer one wasn't cut canonically, in tokens


def canonical_tokens(vocabulary: Vocabulary, history: Sequence[int], forced: bytes, *, ends: bool) -> list[int]:
    """Tokens for (a prefix of) `forced`, after the output `history`.

    The end of the history is tokenised together with the forced bytes, and must come out as it is. A last token is held back
    where it could still merge with what follows, unless the output `ends` after the forced bytes.
    """
    if not forced:
        return []
    if len(forced) > _LONGEST:
        forced, ends = forced[:_LONGEST], False
    for tail in _tails(vocabulary, history):
        before = vocabulary.text(tail)
        try:
            tokens = vocabulary.encode(before + forced)
        except ValueError:  # bytes that this tokenizer takes only as part of longer ones
            continue
        known = not any(token in vocabulary.special for token in tokens)
        if known and tokens[: len(tail)] == tail and vocabulary.text(tokens) == before + forced:
            return tokens[len(tail) :] if ends else _settled(vocabulary, tokens, len(tail), before + forced)
    return []


def _tails(vocabulary: Vocabulary, history: Sequence[int]) -> list[list[int]]:
    """Ends of the history, longest first: all of it, or as much as fits in 256 bytes; then a few tokens."""
    length, start = 0, len(history)
    while start > 0 and length + len(vocabulary.tokens[history[start - 1]]) <= _WHOLE:
        start -= 1
        length += len(vocabulary.tokens[history[start]])
    longest = list(history[start:])
    return [longest] + [longest[-count:] for count in _TAILS if count < len(longest)]


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
    for at in range(min(limit, len(text) - 1), 0, -1):
        before, after = text[at - 1], text[at]
        if _is_word(before) and after < 0x80 and not _is_word(after) and after != 0x27:
            return at
    return 0


def _is_word(byte: int) -> bool:
    return 0x30 <= byte <= 0x39 or 0x41 <= byte <= 0x5A or 0x61 <= byte <= 0x7A
