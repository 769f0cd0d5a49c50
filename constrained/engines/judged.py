"""A grammar that takes too much, and a judge who refuses what is too much: together exact.

Around llguidance's matcher for schemas with loose places. A token is refused where the value can't become valid after it, or
where, as far as a bounded look ahead tells, nothing could follow.
"""

from collections.abc import Sequence

import numpy as np

from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.mask import allocate, forbid, iterate_allowed
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["JudgedGrammar", "JudgedMatcher"]

_MAX_OPEN = 512  # of more tokens that leave a string open, none is judged
_MAX_PROBED = 24
_MAX_FOLLOWED = 12
_BUDGET = 48


class JudgedGrammar:
    """`inner` takes all that `judge` takes, and more; `prefix` bytes come before the value."""

    def __init__(self, vocabulary: Vocabulary, inner: CompiledGrammar, judge: Judge, prefix: int) -> None:
        self.vocabulary = vocabulary
        self.reader = Reader(judge, prefix)
        self._inner = inner
        marked = np.array([b'"' in text for text in vocabulary.tokens], dtype=np.uint8)
        marked = np.pad(marked, (0, -len(marked) % 32))
        self.foreign = "\ue000".encode() * (vocabulary.longest // 3 + 1)
        self.quoted: MaskRow = np.packbits(marked, bitorder="little").view(np.int32)

    @property
    def narrowed(self) -> tuple[str, ...]:
        """What the inner grammar narrowed, and keys that stand twice in one object."""
        return self._inner.narrowed

    def matcher(self) -> "JudgedMatcher":
        """A new cursor at the start."""
        return JudgedMatcher(self, self._inner.matcher())


class JudgedMatcher:
    """The cursor of one sequence (`grammar.Matcher`): the inner cursor, and the reader's state after each token."""

    def __init__(self, grammar: JudgedGrammar, inner: Matcher) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._reader = grammar.reader
        self._inner = inner
        self._states: list[State] = [grammar.reader.start()]
        self._eos = frozenset(self._vocabulary.eos)
        self._row: MaskRow = allocate(1, self._vocabulary.size)[0]

    def fill(self, row: MaskRow) -> None:
        """Write the tokens that may come next. Raises MatcherError where there is none."""
        self._inner.fill(row)
        refused = self._refused(row, self._states[-1])
        if refused:
            forbid(row, refused)
        if self._states[-1].frame is not None and self._states[-1].frame.loose:
            dead = self._dead_ends(row)
            if dead:
                forbid(row, dead)
        if not row.any():
            raise MatcherError(
                f"The grammar can't be followed any further after {len(self._states) - 1} tokens: "
                "what is written can't become valid, which could not be told earlier."
            )

    def _refused(self, row: MaskRow, state: State) -> list[int]:
        """The allowed tokens after which the judge refuses; tokens that differ in nothing it sees are judged once."""
        refused = [] if self._reader.may_end(state) else list(self._eos)
        candidates = iterate_allowed(row)
        in_text = state.at in (At.IN_STRING, At.IN_KEY) and len(candidates) > _MAX_OPEN
        if in_text and (state.at is At.IN_KEY or self._reader.read(state, self._grammar.foreign) is not None):
            # a text that no schema mentions may go on, so that only the end of the string is left to judge
            candidates = iterate_allowed(row[: len(self._grammar.quoted)] & self._grammar.quoted)
        tokens = self._vocabulary.tokens
        label = self._reader.labels(state)
        judged: dict[object, bool] = {}
        for token in candidates.tolist():
            text = tokens[token]
            if not text:
                continue
            name = label(text)
            if name not in judged:  # what is refused after the first byte is refused after more
                first = text[:1]
                if first not in judged:
                    judged[first] = self._reader.read(state, first) is not None
                judged[name] = judged[first] and self._reader.read(state, text) is not None
            if not judged[name]:
                refused.append(token)
        return refused

    def _dead_ends(self, row: MaskRow) -> list[int]:
        """Of few tokens that complete something, those after which nothing could follow."""
        candidates = self._text(row)
        if not 0 < len(candidates) <= _MAX_PROBED:
            return []
        budget = [_BUDGET]
        state = self._states[-1]
        return [token for token in candidates if not self._goes_on(state, token, budget)]

    def _text(self, row: MaskRow) -> list[int]:
        tokens = self._vocabulary.tokens
        return [token for token in iterate_allowed(row).tolist() if tokens[token]]

    def _goes_on(self, state: State, token: int, budget: list[int]) -> bool:
        """Whether something may follow `token`; where that takes too long to tell, it is taken for granted."""
        if budget[0] <= 0:
            return True
        budget[0] -= 1
        reached = self._reader.read(state, self._vocabulary.tokens[token])
        if reached is None or self._inner.advance((token,)) != 1:
            return False
        try:
            if self._inner.can_end and self._reader.may_end(reached):
                return True
            row = self._row.copy()
            self._inner.fill(row)
            following = self._text(row)
            if len(following) > _MAX_FOLLOWED:
                return any(self._reader.read(reached, self._vocabulary.tokens[each]) for each in following)
            return any(self._goes_on(reached, each, budget) for each in following)
        finally:
            self._inner.rollback(1)

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        for count, token in enumerate(tokens):
            state = self._states[-1]
            following: State | None = state
            if token in self._eos:
                following = state if self._reader.may_end(state) else None
            elif 0 <= token < self._vocabulary.size:
                following = self._reader.read(state, self._vocabulary.tokens[token])
            if following is None or self._inner.advance((token,)) != 1:
                return count
            self._states.append(following)
        return len(tokens)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        self._inner.rollback(count)
        if count:
            del self._states[-count:]

    def forced(self) -> list[int]:
        """The tokens that the inner grammar forces, up to the first that the judge refuses."""
        if self._reader.may_end(self._states[-1]):
            return []
        kept: list[int] = []
        state: State | None = self._states[-1]
        for token in self._inner.forced():
            state = self._reader.read(state, self._vocabulary.tokens[token]) if state else None
            if state is None:
                break
            kept.append(token)
        return kept

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete, valid value."""
        return self._inner.can_end and self._reader.may_end(self._states[-1])

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        if self._inner.finished:
            return True
        if not self.can_end:
            return False
        row = self._row.copy()
        self.fill(row)
        forbid(row, self._eos)
        return not row.any()
