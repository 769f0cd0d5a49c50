"""A grammar that takes too much, and a judge who refuses what is too much: together exact.

Around llguidance's matcher for schemas with loose places. A token is refused where the value can't become valid after it, or
where, as far as a bounded look ahead tells, nothing could follow.
"""

from collections.abc import Sequence

from branchpoint.constrained.engines.effects import Effects
from branchpoint.constrained.engines.plain import PlainCutter
from branchpoint.constrained.engines.rows import RowReader
from branchpoint.constrained.engines.shapes import TokenShapes
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.mask import allocate, forbid, is_empty, iterate_allowed
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.constrained.work import Allowance

__all__ = ["JudgedGrammar", "JudgedMatcher"]

_MAX_PROBED = 16
_MAX_FOLLOWED = 8
_BUDGET = 32


class JudgedGrammar:
    """`inner` takes all that `judge` takes, and more; `prefix` bytes come before the value."""

    def __init__(
        self, vocabulary: Vocabulary, shapes: TokenShapes, effects: Effects, inner: CompiledGrammar, judge: Judge, prefix: int
    ) -> None:
        self.vocabulary = vocabulary
        self.judge = judge
        self.reader = Reader(judge, prefix)
        self.rows = RowReader(vocabulary, shapes, self.reader)
        self.plain = PlainCutter(vocabulary, shapes, effects, judge, self.reader)
        self.inner = inner

    @property
    def narrowed(self) -> tuple[str, ...]:
        """What the inner grammar narrowed, and keys that stand twice in one object."""
        return self.inner.narrowed

    def matcher(self) -> "JudgedMatcher":
        """A new cursor at the start."""
        return JudgedMatcher(self, self.inner.matcher())


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
        self._allowance = Allowance(grammar.judge.work)
        self._ahead: tuple[State, int, State | None] | None = None  # what was read last: a state, a token, and what it led to

    def fill(self, row: MaskRow) -> None:
        """Write the tokens that may come next. Raises MatcherError where there is none."""
        self._fill_inner(row)
        self.narrow(row)

    def fill_loosely(self, row: MaskRow) -> "JudgedMatcher":
        """Write the tokens that the inner grammar takes; which of them the judge refuses is left to ask."""
        self._fill_inner(row)
        return self

    def _fill_inner(self, row: MaskRow) -> None:
        self._inner.fill(row)
        if self._inner.can_end and not self._reader.may_end(self._states[-1]):
            forbid(row, self._eos)

    def allows(self, token: int) -> bool:
        """Whether a token that the inner grammar takes may come next (`grammar.Residue`).

        One token can be followed further than all of a row: what leads nowhere is refused here even where `fill` doesn't look.
        """
        if token in self._eos:
            return self.can_end
        with self._allowance:
            reached = self._reached(token)
            if reached is None:
                return False
            state = self._states[-1]
            if state.frame is None or not state.frame.loose or not self._may_strand(state):
                return True
            return self._goes_on(state, token, [_BUDGET])

    def narrow(self, row: MaskRow) -> None:
        """Take out of a row what the judge refuses. Raises MatcherError where nothing is left."""
        state = self._states[-1]
        with self._allowance:
            if self._grammar.plain.applies(state):
                self._grammar.plain.cut(row, state)
            else:
                self._judged(row, state)
        if is_empty(row):
            raise MatcherError(
                f"The grammar can't be followed any further after {len(self._states) - 1} tokens: "
                "what is written can't become valid, which could not be told earlier."
            )

    def _judged(self, row: MaskRow, state: State) -> None:
        refused = self._grammar.rows.refused(row, state)
        if refused:
            forbid(row, refused)
        if state.frame is not None and state.frame.loose and _count(row) <= _MAX_PROBED and self._may_strand(state):
            dead = self._dead_ends(row)
            if dead:
                forbid(row, dead)

    def _may_strand(self, state: State) -> bool:
        """Whether a token that is allowed in this loose container may lead to where all that follow are refused."""
        frame = state.frame
        assert frame is not None, "asked in a loose container"
        if state.at is At.AFTER or state.at is At.KEY or state.at is At.IN_KEY:
            return True
        return any(self._grammar.judge.is_sensitive(frame, kind) for kind in ("string", "number", "boolean"))

    def _dead_ends(self, row: MaskRow) -> list[int]:
        """Of few tokens that complete something, those after which nothing could follow."""
        budget = [_BUDGET]
        state = self._states[-1]
        return [token for token in self._text(row) if not self._goes_on(state, token, budget)]

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
            return _count(row) > _MAX_FOLLOWED or any(self._goes_on(reached, each, budget) for each in self._text(row))
        finally:
            self._inner.rollback(1)

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        for count, token in enumerate(tokens):
            if self._inner.advance((token,)) != 1:
                return count
            following = self._following(token)
            if following is None:
                self._inner.rollback(1)
                return count
            self._states.append(following)
            self._allowance.renew()
        return len(tokens)

    def _following(self, token: int) -> State | None:
        """The state after a token that the inner grammar takes."""
        state = self._states[-1]
        if token in self._eos:
            return state if self._reader.may_end(state) else None
        with self._allowance:
            return self._reached(token)

    def _reached(self, token: int) -> State | None:
        """The state after a token's text, None where the judge refuses it."""
        state = self._states[-1]
        if self._ahead is None or self._ahead[0] is not state or self._ahead[1] != token:
            self._ahead = state, token, self._reader.read(state, self._vocabulary.tokens[token])
        return self._ahead[2]

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        self._inner.rollback(count)
        if count:
            del self._states[-count:]
            self._allowance.renew()

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


def _count(row: MaskRow) -> int:
    """How many tokens are allowed."""
    return int.from_bytes(row.tobytes(), "little").bit_count()
