"""The protocols of this room: what the engine holds while it decodes under a constraint.

Grammar engines (`engines/`) implement them; `runtime` only ever sees these. A mask row is `mask_words(vocab)` int32
words, bit `t % 32` of word `t // 32` set where token `t` may come next (least significant bit first).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.spec import Narrowing

__all__ = ["CompiledGrammar", "MaskRow", "Matcher", "Residue", "mask_words"]

MaskRow = npt.NDArray[np.int32]


def mask_words(vocabulary_size: int) -> int:
    """Number of int32 words in a mask row for `vocabulary_size` tokens (the width of the model's logits)."""
    return (vocabulary_size + 31) // 32


class Residue(Protocol):
    """What is left to ask about a row that a cursor filled loosely. Speaks of where the cursor stands when it is asked."""

    def allows(self, token: int) -> bool:
        """Whether a token of the row may come next."""

    def narrow(self, row: MaskRow) -> None:
        """Take out of the row what may not come next, but for some that lead nowhere, which `allows` still refuses.

        Raises MatcherError where nothing is left.
        """


class Matcher(Protocol):
    """A cursor of one sequence in a grammar. Errors stick: after one, every call raises it again."""

    def fill(self, row: MaskRow) -> None:
        """Write into `row` the tokens that may come next; end tokens are set exactly where the value may end."""

    def fill_loosely(self, row: MaskRow) -> Residue | None:
        """Write a row of all tokens that may come next and some that may not, where that is quicker; None: it is exact.

        Whoever draws asks the residue about what is drawn, and draws again without what it refuses.
        """

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume `tokens` in order and return how many were accepted; the first refused one changes nothing."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""

    def forced(self) -> list[int]:
        """The tokens that the grammar leaves no choice about, as the tokenizer itself would cut them; consumes nothing."""

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete sentence."""

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""


class CompiledGrammar(Protocol):
    """An immutable compiled constraint, shared by sequences and cached by content and vocabulary."""

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What was made stricter than asked (empty where the grammar is exact)."""

    def matcher(self) -> Matcher:
        """A new cursor at the start."""
