"""Choices: the output is, byte for byte, one of a list. Options that are prefixes of one another are all reachable.

A state is a depth and the run of sorted options that agree up to it; masks are made per state and kept.
"""

import bisect
from collections.abc import Iterator, Sequence

import numpy as np

from branchpoint.constrained.engines.states import StateMatcher
from branchpoint.constrained.errors import EmptyLanguage, shorten
from branchpoint.constrained.forced import ForcedCuts
from branchpoint.constrained.grammar import MaskRow, mask_words
from branchpoint.constrained.mask import pack
from branchpoint.constrained.spec import Narrowing
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
        self.cuts = ForcedCuts(vocabulary)
        self._options = sorted(set(options))
        self._rows: dict[ChoiceState, MaskRow] = {}
        self._finishable: dict[int, frozenset[int]] = {}
        unspelled = bytes(byte for byte in range(256) if bytes((byte,)) not in vocabulary.by_bytes)
        for at, option in enumerate(self._options):
            if not unspelled or option.translate(None, unspelled) == option:
                continue  # every byte is a token
            positions = finishable_positions(vocabulary, option)
            if positions is not None:
                if 0 not in positions:
                    raise EmptyLanguage(f"The tokenizer has no tokens that spell the option {shorten(option)}.")
                self._finishable[at] = positions
        self.row(self.start())  # by far the largest

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
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
        first = bisect.bisect_left(self._options, text, low, high, key=lambda option: option[depth:end])
        after = bisect.bisect_right(self._options, text, first, high, key=lambda option: option[depth:end])
        reached = first < after and self._may_finish(first, after, end)
        return (end, first, after) if reached else None

    def _may_finish(self, low: int, high: int, end: int) -> bool:
        return not self._finishable or any(end in self._finishable.get(at, (end,)) for at in range(low, high))

    def row(self, state: ChoiceState) -> MaskRow:
        """Every token that is the beginning of what some open option still lacks."""
        kept = self._rows.get(state)
        if kept is None:
            kept = self._make_row(state)
            if len(self._rows) < _KEPT_ROWS:
                self._rows[state] = kept
        return kept

    def _make_row(self, state: ChoiceState) -> MaskRow:
        depth, low, high = state
        found: set[bytes] = set()
        shared = 0  # bytes that an option has in common with the one before it, which have been looked at
        for at in range(low, high):
            if at > low and not self._finishable:
                shared = _common_length(self._options[at - 1], self._options[at], depth, depth + self.vocabulary.longest)
            found.update(self._beginnings(at, depth, shared))
        ids = [token for piece in found for token in self.vocabulary.by_bytes[piece]]
        return pack(ids, self.vocabulary.size) if ids else np.zeros(mask_words(self.vocabulary.size), dtype=np.int32)

    def _beginnings(self, at: int, depth: int, shared: int) -> Iterator[bytes]:
        """Tokens' bytes, longer than `shared` bytes, that begin the rest of one option and leave it possible to finish."""
        option = self._options[at]
        finishable = self._finishable.get(at)
        for end in range(depth + shared + 1, min(len(option), depth + self.vocabulary.longest) + 1):
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
        common = _common_length(first, last, 0, _LONGEST_FORCED)
        return first[:common], high - low == 1 and depth + common == len(self._options[low])


def _common_length(one: bytes, other: bytes, start: int, end: int) -> int:
    """How many bytes the two have in common from `start` on, looking no further than `end`."""
    length = min(len(one), len(other), end) - start
    if length <= 0:
        return 0
    first, second = one[start : start + length], other[start : start + length]
    different = int.from_bytes(first) ^ int.from_bytes(second)  # its highest bit lies in the first byte that differs
    return length - (different.bit_length() + 7) // 8
