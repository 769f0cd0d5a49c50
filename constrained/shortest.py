"""A short text in which a pattern of a JSON schema finds something: a guess, for `guide.py`."""

from functools import lru_cache

from branchpoint.constrained.charset import CharSet
from branchpoint.constrained.ecma import python_pattern
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.regex import Chars, Choice, Node, Repeat, Series, parse_regex

__all__ = ["liked", "shortest_match"]

_LONGEST = 4096
_LIKED = (0x61, 0x30, 0x41)  # a, 0, A


@lru_cache(maxsize=1024)
def shortest_match(pattern: str) -> str | None:
    """A text of few characters in which `pattern` matches, None where that isn't seen quickly."""
    readable = python_pattern(pattern)
    if readable is None:
        return None
    try:
        return _shortest(parse_regex(readable))
    except GrammarError:
        return None


def _shortest(node: Node) -> str | None:
    match node:
        case Chars(chars):
            return chr(liked(chars))
        case Choice(branches):
            texts = [text for branch in branches if (text := _shortest(branch)) is not None]
            return min(texts, key=len, default=None)
        case Repeat(body, low, _):
            text = _shortest(body) if low else ""
            return None if text is None or len(text) * low > _LONGEST else text * low
        case Series(parts):
            found = [_shortest(part) for part in parts]
            whole = "".join(text for text in found if text is not None)
            return None if None in found or len(whole) > _LONGEST else whole


def liked(chars: CharSet) -> int:
    """A character of a set: a letter or digit where there is one."""
    for code in _LIKED:
        if any(low <= code <= high for low, high in chars):
            return code
    return next((max(low, 0x21) for low, high in chars if high >= 0x21), chars[0][0])
