"""Free text that must begin with given bytes: what was cut from a prompt's end, so that the model may choose the cut afresh.

`compile_prefix` is what `GrammarCompiler.compile(None, prefix)` gives. Constraints take the prefix into their own language.
"""

import numpy as np

from branchpoint.constrained.engines.states import StateMatcher
from branchpoint.constrained.errors import EmptyLanguage, shorten
from branchpoint.constrained.forced import ForcedCuts
from branchpoint.constrained.grammar import MaskRow, mask_words
from branchpoint.constrained.mask import allow_all, forbid, pack
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.spelling import finishable_positions
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["HealedText", "compile_prefix"]


class HealedText:
    """Bytes that begin with `prefix`; after it, every token is allowed, end tokens too. A state is the bytes matched."""

    def __init__(self, vocabulary: Vocabulary, prefix: bytes) -> None:
        self.vocabulary = vocabulary
        self.cuts = ForcedCuts(vocabulary)
        self._prefix = prefix
        self._free = np.zeros(mask_words(vocabulary.size), dtype=np.int32)
        allow_all(self._free, vocabulary.size)
        forbid(self._free, vocabulary.eos)
        self._rows: dict[int, MaskRow] = {}
        self._finishable = finishable_positions(vocabulary, prefix, open_end=True)
        if not self._may_reach(0):
            raise EmptyLanguage(f"The tokenizer has no tokens that spell the healed bytes {shorten(prefix)}.")

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """Nothing: the grammar is exact."""
        return ()

    def matcher(self) -> StateMatcher[int]:
        """A new cursor at the start."""
        return StateMatcher(self)

    def start(self) -> int:
        """No byte is matched."""
        return 0

    def step(self, state: int, token: int) -> int | None:
        """Matched bytes after `token`, which lies within the rest of the prefix or reaches over its end."""
        rest = self._prefix[state:]
        if not rest:
            return state
        text = self.vocabulary.tokens[token]
        if not text or not (rest.startswith(text) or text.startswith(rest)):
            return None
        reached = min(state + len(text), len(self._prefix))
        return reached if self._may_reach(reached) else None

    def _may_reach(self, position: int) -> bool:
        return self._finishable is None or position in self._finishable

    def row(self, state: int) -> MaskRow:
        """Tokens that are a beginning of the rest, and those that begin with it."""
        rest = self._prefix[state:]
        if not rest:
            return self._free
        kept = self._rows.get(state)
        if kept is None:
            lengths = [
                length for length in range(1, min(len(rest), self.vocabulary.longest) + 1) if self._may_reach(state + length)
            ]
            pieces = [rest[:length] for length in lengths if rest[:length] in self.vocabulary.by_bytes]
            pieces += self.vocabulary.extensions(rest)
            kept = pack([token for piece in pieces for token in self.vocabulary.by_bytes[piece]], self.vocabulary.size)
            self._rows[state] = kept
        return kept

    def accepts(self, state: int) -> bool:
        """Whether the prefix is complete."""
        return state == len(self._prefix)

    def forced_bytes(self, state: int) -> tuple[bytes, bool]:
        """Nothing: the point of healing is that the model chooses the cut."""
        return b"", False


def compile_prefix(vocabulary: Vocabulary, prefix: bytes) -> HealedText:
    """A grammar for any text that begins with `prefix`."""
    return HealedText(vocabulary, prefix)
