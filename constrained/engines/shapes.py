"""Tokens by where their first quote stands: what lets many tokens be judged as one. Made once for a vocabulary.

Used by `judged.py`. A head is a token's text up to its only quote, an ending the text from its first quote on.
"""

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["TokenShapes"]

_QUOTE, _BACKSLASH = b'"', b"\\"


class TokenShapes:
    """Tables over token ids; -1 where a token has no such part."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.heads: list[bytes] = []
        self.endings: list[bytes] = []
        self.head_of: npt.NDArray[np.int32] = np.full(vocabulary.size, -1, dtype=np.int32)
        self.ending_of: npt.NDArray[np.int32] = np.full(vocabulary.size, -1, dtype=np.int32)
        self.foreign = "\ue000".encode() * (vocabulary.longest // 3 + 1)
        self.escaped: npt.NDArray[np.bool_] = np.array([_BACKSLASH in text for text in vocabulary.tokens])
        heads: dict[bytes, int] = {}
        endings: dict[bytes, int] = {}
        marked = np.zeros(-(-vocabulary.size // 32) * 32, dtype=np.uint8)
        for token, text in enumerate(vocabulary.tokens):
            at = text.find(_QUOTE)
            if at < 0:
                continue
            marked[token] = 1
            if _BACKSLASH in text:
                continue
            self.ending_of[token] = endings.setdefault(text[at:], len(endings))
            if text.find(_QUOTE, at + 1) < 0:
                self.head_of[token] = heads.setdefault(text[: at + 1], len(heads))
        self.heads, self.endings = list(heads), list(endings)
        grouped: dict[bytes, list[int]] = {}
        for token, number in enumerate(self.head_of.tolist()):
            if number >= 0:
                grouped.setdefault(self.heads[number], []).append(token)
        self._by_head = {head: tuple(tokens) for head, tokens in grouped.items()}
        self.quoted: MaskRow = np.packbits(marked, bitorder="little").view(np.int32)

    def by_head(self, head: bytes) -> tuple[int, ...]:
        """The tokens that have this head."""
        return self._by_head.get(head, ())
