"""Guesses that are a tree: who of them sees whom. Told by their depths, in the order in which one walks a tree down and back.

A guess of depth d stands behind the nearest one before it of depth d - 1, one of depth 0 behind what is certain. `layout` makes
masks of it, `laying` bits.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["WORDS", "hidden_words", "seen_guesses"]

WORDS = 2
"""Numbers of 32 bits for each row: so many keys before it may be hidden one by one, as many as a slot may have guesses."""


def seen_guesses(depths: Sequence[int]) -> NDArray[np.bool_]:
    """Which guesses [k, k] each one sees: itself and those that it stands behind."""
    seen = np.zeros((len(depths), len(depths)), np.bool_)
    way: list[int] = []
    for number, depth in enumerate(depths):
        assert depth <= len(way), "a guess stands behind one that isn't there"
        del way[depth:]
        way.append(number)
        seen[number, way] = True
    return seen


def hidden_words(counts: Sequence[int], trees: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """For each row [T, WORDS] bits of the keys before it that it doesn't see: bit j is the key that lies j before its own.

    The rows are those of slots of `counts` tokens; the last of a slot are its tree of at most 32 * WORDS guesses.
    """
    words = np.zeros((sum(counts), WORDS), np.uint32)
    end = 0
    for count, depths in zip(counts, trees, strict=True):
        end += count
        assert len(depths) <= 32 * WORDS, "more guesses than there are bits"
        rows, keys = np.nonzero(np.tril(~seen_guesses(depths)))
        back = (rows - keys).astype(np.uint32)
        np.bitwise_or.at(words, (end - len(depths) + rows, back // 32), np.uint32(1) << (back % 32))
    return words.view(np.int32)
