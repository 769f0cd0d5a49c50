"""Choices: the output is, byte for byte, one of a list. Options that are prefixes of one another are all reachable.

A state is a depth and the run of sorted options that agree up to it; masks are made per state and kept.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from branchpoint.constrained.engines.states import StateMatcher
from branchpoint.constrained.errors import EmptyLanguage, shorten
from branchpoint.constrained.grammar import MaskRow, mask_words
from branchpoint.constrained.mask import pack
from branchpoint.constrained.spelling import finishable_positions
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["ChoiceGrammar", "ChoiceState"]

ChoiceState = tuple[int, int, int]
"""Bytes matched, and the half-open range of sorted options that share them."""

_KEPT_ROWS = 512
_LONGEST_FORCED = 4096  # bytes looked at for what is forced: the rest is, later


class ChoiceGrammar:
    """One of `options` (bytes, any order, duplicates allowed); each may be empty.

    Raises EmptyLanguage for none at all, or where the vocabulary has no tokens that spell one of them.
    """

    def __init__(self, vocabulary: Vocabulary, options: Sequence[bytes]) -> None:
        if not options:
            raise EmptyLanguage("Expected at least one option to choose from, got none.")
        self.vocabulary = vocabulary
        self._options = sorted(set(options))
        self._rows: dict[ChoiceState, MaskRow] = {}
        self._finishable: dict[int, frozenset[int]] = {}
        for at, option in enumerate(self._options):
            positions = finishable_positions(vocabulary, option)
            if positions is not None:
                if 0 not in positions:
                    raise EmptyLanguage(f"The tokenizer has no tokens that spell the option {shorten(option)}.")
                self._finishable[at] = positions

    @property
    def narrowed(self) -> tuple[str, ...]:
        """Nothing: the grammar is exact."""
        return ()

    def matcher(self) -> StateMatcher[ChoiceState]:
        """A new cursor at the start."""
        return StateMatcher(self)

    def start(self) -> ChoiceState:
        """All options are open."""
        return (0, 0, len(self._options))

    def step(self, state: ChoiceState, token: int) -> ChoiceState | None:
        """The options that go on with the token's bytes."""
        text = self.vocabulary.tokens[token]
        depth, low, high = state
        if not text or token in self.vocabulary.special:
            return None
        end = depth + len(text)
        fitting = [at for at in range(low, high) if self._options[at][depth:end] == text]
        if not any(end in self._finishable.get(at, (end,)) for at in fitting):
            return None
        return (end, fitting[0], fitting[-1] + 1)

    def row(self, state: ChoiceState) -> MaskRow:
        """Every token that is the beginning of what some open option still lacks."""
        kept = self._rows.get(state)
        if kept is None:
            kept = self._make_row(state)
            if len(self._rows) < _KEPT_ROWS:
                self._rows[state] = kept
        return kept

    def _make_row(self, state: ChoiceState) -> MaskRow:
        found = {piece for at in range(state[1], state[2]) for piece in self._beginnings(at, state[0])}
        ids = [token for piece in found for token in self.vocabulary.by_bytes[piece]]
        return pack(ids, self.vocabulary.size) if ids else np.zeros(mask_words(self.vocabulary.size), dtype=np.int32)

    def _beginnings(self, at: int, depth: int) -> Iterator[bytes]:
        """Tokens' bytes that begin the rest of one option and leave it possible to finish."""
        option = self._options[at]
        finishable = self._finishable.get(at)
        for end in range(depth + 1, min(len(option), depth + self.vocabulary.longest) + 1):
            if option[depth:end] in self.vocabulary.by_bytes and (finishable is None or end in finishable):
                yield option[depth:end]

    def accepts(self, state: ChoiceState) -> bool:
        """Whether an option ends here (in sorted order it is the first of its run)."""
        depth, low, _ = state
        return len(self._options[low]) == depth

    def forced_bytes(self, state: ChoiceState) -> tuple[bytes, bool]:
        """What all open options have in common from here."""
        if self.accepts(state):
            return b"", False
        depth, low, high = state
        first, last = (self._options[at][depth : depth + _LONGEST_FORCED] for at in (low, high - 1))
        common = next(
            (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), min(len(first), len(last))
        )
        return first[:common], high - low == 1 and depth + common == len(self._options[low])
