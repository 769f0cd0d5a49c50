"""What each token's brackets, commas and quotes do to the open containers: lets a mask be cut without reading each token.

Used by `plain.py`; made once for a vocabulary. A token means one thing outside of strings and another within.
"""

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.mask import is_empty, iterate_allowed, pack
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["LEVELS", "Effects", "Levels"]

LEVELS = 3
"""How many open containers, innermost first, are told apart; tokens that close more are odd."""

_CLOSE, _SPACE = b"}]", b" \t\n\r"
_INNER = b"{[,:"  # after these comes a member, or its value
_TELLING = re.compile(rb"[][{}:,\"\\]")  # tokens without any of these do nothing
_QUOTE, _BACKSLASH, _COMMA = b'"'[0], b"\\"[0], b","[0]

Levels = tuple[tuple[bool, bool], ...]
"""For each open container, innermost first: whether it may not be closed yet, and whether no member may follow."""


@dataclass(slots=True)
class _Effect:
    """`closes` containers that were open before, and has commas after closing so many.

    What is `odd` has to be read by itself; `very` odd, even where any value will do.
    """

    closes: int = 0
    commas: set[int] = field(default_factory=set)
    odd: bool = False
    very: bool = False


class Effects:
    """Rows of the tokens that levels allow, and the tokens that have to be read. Remembers rows that were asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._size = vocabulary.size
        self._effects = {quoted: self._all(vocabulary, quoted=quoted) for quoted in (False, True)}
        self._rows: dict[tuple[bool, Levels], MaskRow | None] = {}
        self._odd = {(quoted, very): self._odd_words(quoted, very) for quoted in (False, True) for very in (False, True)}

    def _all(self, vocabulary: Vocabulary, *, quoted: bool) -> dict[int, _Effect]:
        telling = ((token, text) for token, text in enumerate(vocabulary.tokens) if _TELLING.search(text))
        found = {token: _effect(text, quoted=quoted) for token, text in telling}
        return {token: each for token, each in found.items() if each.closes or each.commas or each.odd}

    def _odd_words(self, quoted: bool, very: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """The words of a row that have bits of odd tokens, and those bits."""
        row = pack((token for token, each in self._effects[quoted].items() if each.very or (each.odd and not very)), self._size)
        words = np.flatnonzero(row)
        return words, row[words]

    def allowed_odd(self, row: MaskRow, *, quoted: bool, any_value: bool) -> list[int]:
        """The odd tokens that a row allows; only the very odd ones where any value will do."""
        words, bits = self._odd[quoted, any_value]
        found = row[words] & bits
        if is_empty(found):
            return []
        return [int(words[at]) * 32 + int(bit) for at in np.flatnonzero(found) for bit in iterate_allowed(found[at : at + 1])]

    def kept(self, levels: Levels, *, quoted: bool) -> MaskRow | None:
        """The tokens that may come where the containers are like this, None where all may; very odd ones are taken for fit."""
        key = (quoted, levels)
        if key not in self._rows:
            barred = [token for token, each in self._effects[quoted].items() if not each.very and _breaks(each, levels)]
            self._rows[key] = ~pack(barred, self._size) if barred else None
        return self._rows[key]


def _breaks(effect: _Effect, levels: Levels) -> bool:
    return any(
        (needed and effect.closes > level) or (full and level in effect.commas) for level, (needed, full) in enumerate(levels)
    )


def _effect(text: bytes, *, quoted: bool) -> _Effect:
    """Follow a token's text. Odd is what begins a member; very odd, what does more than begin it."""
    effect = _Effect()
    escaped = begun = inside = False
    for byte in text:
        if quoted:
            effect.very |= begun and inside
            effect.odd |= begun and byte == _QUOTE
            if escaped:
                escaped = False
            elif byte == _BACKSLASH:
                escaped = True
            elif byte == _QUOTE:
                quoted = False
            continue
        if byte in _SPACE:
            continue
        effect.odd |= inside
        if byte == _QUOTE:
            quoted = begun = True
        elif byte in _CLOSE:
            effect.very |= inside
            effect.closes += 1
        elif byte == _COMMA:
            effect.commas.add(effect.closes)
        inside = inside or byte in _INNER
    effect.very |= effect.closes > LEVELS
    effect.odd |= effect.very
    return effect
