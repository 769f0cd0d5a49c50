"""Rows of packed bits, one per position whose logits are wanted; the sampler applies them, the engines fill them.

Bit `t % 32` of int32 word `t // 32` is token `t`, least significant first (see `grammar.py`).
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.grammar import MaskRow, mask_words

__all__ = ["allocate", "allow", "allow_all", "forbid", "is_allowed", "is_empty", "iterate_allowed", "pack"]

_FEW = 32


def allocate(rows: int, vocabulary_size: int) -> npt.NDArray[np.int32]:
    """A zeroed batch, int32 of shape [rows, mask_words(vocabulary_size)]: nothing is allowed yet."""
    return np.zeros((rows, mask_words(vocabulary_size)), dtype=np.int32)


def allow_all(row: MaskRow, vocabulary_size: int) -> None:
    """Allow every token below `vocabulary_size`; bits beyond it are cleared."""
    whole, rest = divmod(vocabulary_size, 32)
    row[:whole] = -1
    row[whole:] = 0
    if rest:
        row[whole] = (1 << rest) - 1


def allow(row: MaskRow, tokens: Iterable[int]) -> None:
    """Set the bits of a few tokens."""
    words = row.view(np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))


def forbid(row: MaskRow, tokens: Iterable[int]) -> None:
    """Clear the bits of some tokens."""
    if isinstance(tokens, list) and len(tokens) > _FEW:
        ids = np.array(tokens, dtype=np.int64)
        np.bitwise_and.at(row.view(np.uint32), ids >> 5, ~(np.uint32(1) << (ids & 31).astype(np.uint32)))
        return
    words = row.view(np.uint32)
    for token in tokens:
        words[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)


def is_allowed(row: MaskRow, token: int) -> bool:
    """Whether the bit of `token` is set."""
    return bool((int(row[token >> 5]) >> (token & 31)) & 1)


def is_empty(row: MaskRow) -> bool:
    """Whether no token is allowed (several times as fast as asking numpy)."""
    return row.tobytes() == bytes(row.nbytes)


def iterate_allowed(row: MaskRow) -> npt.NDArray[np.int64]:
    """The allowed token ids, ascending."""
    return np.flatnonzero(np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little").view(np.bool_))


def pack(tokens: Iterable[int], vocabulary_size: int) -> MaskRow:
    """A fresh row in which exactly `tokens` are allowed."""
    bits = np.zeros(mask_words(vocabulary_size) * 32, dtype=np.uint8)
    bits[np.fromiter(tokens, dtype=np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)
