"""Regexes on outlines-core: an index of every state's tokens, made once, so that a mask is a copy.

Chosen by name for patterns whose automaton is small (`automaton.count_states`); the compiler sends the others to llguidance.
"""

import numpy as np
import outlines_core

from branchpoint.constrained.engines.states import StateMatcher
from branchpoint.constrained.errors import InvalidRegex, shorten
from branchpoint.constrained.forced import ForcedCuts
from branchpoint.constrained.grammar import MaskRow, mask_words
from branchpoint.constrained.mask import forbid, iterate_allowed, pack
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["OutlinesEngine", "OutlinesGrammar"]

_KEPT_ROWS = 1024
_LONGEST_FORCED = 512


class OutlinesEngine:
    """Compiles patterns for one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        grouped = {text: list(ids) for text, ids in vocabulary.by_bytes.items()}
        self._inner = outlines_core.Vocabulary(vocabulary.eos[0], grouped)

    def regex(self, pattern: str) -> "OutlinesGrammar":
        r"""A grammar for a normalised pattern, matched in full. Raises InvalidRegex where the library can't index it.

        Without `\z` it follows the first branch that matches, and loses what a longer match would need.
        """
        try:
            index = outlines_core.Index(rf"(?:{pattern})\z", self._inner)
        except ValueError as error:
            raise InvalidRegex(f"outlines-core can't index {shorten(repr(pattern))}: {shorten(error)}") from error
        return OutlinesGrammar(self._vocabulary, index)


class OutlinesGrammar:
    """A state machine over the index's state ids."""

    def __init__(self, vocabulary: Vocabulary, index: outlines_core.Index) -> None:
        self.vocabulary = vocabulary
        self.cuts = ForcedCuts(vocabulary)
        self._index = index
        self._eos = frozenset(vocabulary.eos)
        self._rows: dict[int, MaskRow] = {}
        self._first_bytes = np.array([text[0] if text else 0 for text in vocabulary.tokens], dtype=np.uint8)

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """Nothing: the grammar is exact."""
        return ()

    def matcher(self) -> StateMatcher[int]:
        """A new cursor at the start."""
        return StateMatcher(self)

    def start(self) -> int:
        """The index's first state."""
        return int(self._index.get_initial_state())

    def step(self, state: int, token: int) -> int | None:
        """The state after `token`."""
        if token in self.vocabulary.special:
            return None
        reached = self._index.get_next_state(state, token)
        return None if reached is None else int(reached)

    def row(self, state: int) -> MaskRow:
        """The tokens that lead on, made when the state is first met."""
        kept = self._rows.get(state)
        if kept is None:
            allowed = self._index.get_allowed_tokens(state) or []
            kept = pack(allowed, self.vocabulary.size) if allowed else np.zeros(mask_words(self.vocabulary.size), np.int32)
            forbid(kept, self._eos)
            if len(self._rows) < _KEPT_ROWS:
                self._rows[state] = kept
        return kept

    def accepts(self, state: int) -> bool:
        """Whether the pattern matches what led here."""
        return bool(self._index.is_final_state(state))

    def forced_bytes(self, state: int) -> tuple[bytes, bool]:
        """Bytes that all tokens from here begin with, one after the other, as far as single-byte tokens spell them."""
        forced = bytearray()
        while len(forced) < _LONGEST_FORCED and not self.accepts(state):
            following = np.unique(self._first_bytes[iterate_allowed(self.row(state))])
            if len(following) != 1:
                break
            single = self.vocabulary.by_bytes.get(bytes(following))
            reached = self.step(state, single[0]) if single else None
            if reached is None:
                break
            forced += bytes(following)
            state = reached
        return bytes(forced), self.accepts(state) and not self.row(state).any()
