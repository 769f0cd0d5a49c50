"""A grammar that takes too much, and a judge who refuses what is too much: together exact.

Around llguidance's matcher for schemas with loose places. A token is refused where the value can't become valid after it, or
where, as far as a bounded look ahead tells, nothing could follow.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.engines.effects import Effects
from branchpoint.constrained.engines.plain import PlainCutter
from branchpoint.constrained.engines.shapes import TokenShapes
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher
from branchpoint.constrained.judge import Judge
from branchpoint.constrained.mask import allocate, forbid, is_empty, iterate_allowed
from branchpoint.constrained.partial import written_key
from branchpoint.constrained.reader import At, Reader, State
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["JudgedGrammar", "JudgedMatcher"]

_MAX_PROBED = 16
_MAX_FOLLOWED = 8
_BUDGET = 32
_MANY = 16
_FOREIGN = "\ue000".encode()
Ids = npt.NDArray[np.int64]
Parts = npt.NDArray[np.int32]


class JudgedGrammar:
    """`inner` takes all that `judge` takes, and more; `prefix` bytes come before the value."""

    def __init__(
        self, vocabulary: Vocabulary, shapes: TokenShapes, effects: Effects, inner: CompiledGrammar, judge: Judge, prefix: int
    ) -> None:
        self.vocabulary = vocabulary
        self.shapes = shapes
        self.judge = judge
        self.reader = Reader(judge, prefix)
        self.plain = PlainCutter(vocabulary, shapes, effects, judge, self.reader)
        self.plain = PlainCutter(vocabulary, shapes, effects, judge, self.reader)
        self._inner = inner

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
        state = self._states[-1]
        if self._inner.can_end and not self._reader.may_end(state):
            forbid(row, self._eos)
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
        refused = self._refused(row, state)
        if refused:
            forbid(row, refused)
        if state.frame is not None and state.frame.loose and self._may_strand(state, refused):
            dead = self._dead_ends(row)
            if dead:
                forbid(row, dead)

    def _refused(self, row: MaskRow, state: State) -> list[int]:
        """The allowed tokens after which the judge refuses; tokens that differ in nothing it sees are judged once."""
        shapes = self._grammar.shapes
        if state.at is At.IN_STRING and self._reader.is_blind(state):
            return self._blind(row, state)
        if state.at in (At.IN_STRING, At.IN_KEY):
            if self._reader.read(state, shapes.foreign) is not None:
                # a text that no schema mentions may go on, so that only the end of the string is left to judge
                candidates = iterate_allowed(row[: len(shapes.quoted)] & shapes.quoted)
            else:
                candidates = iterate_allowed(row)
                told = self._reader.told(state) if state.at is At.IN_STRING else None
                if told is not None and self._reader.read(state, _FOREIGN) is None:
                    known = np.isin(candidates, self._telling(state.text[1:], told)) | (shapes.ending_of[candidates] >= 0)
                    known |= shapes.escaped[candidates]
                    return [*candidates[~known].tolist(), *self._one_by_one(state, candidates[known])]
            if self._reader.is_blind(state):
                return self._by_part(state, candidates, shapes.ending_of, shapes.endings, b"")
            return self._one_by_one(state, candidates)
        return self._by_part(state, iterate_allowed(row), shapes.head_of, shapes.heads, shapes.foreign)

    def _blind(self, row: MaskRow, state: State) -> list[int]:
        """The refused tokens in a string that nobody looks at: by what follows its end, asked once for the whole string."""
        shapes, frame = self._grammar.shapes, state.frame
        candidates = iterate_allowed(row[: len(shapes.quoted)] & shapes.quoted)
        memo = frame.memo if frame is not None else {}
        refused: list[int] = []
        for token, ending in zip(candidates.tolist(), shapes.ending_of[candidates].tolist(), strict=True):
            text = self._vocabulary.tokens[token] if ending < 0 else shapes.endings[ending]
            key = ("string", text.hex())
            if key not in memo:
                memo[key] = self._reader.read(state, text) is not None
            if not memo[key]:
                refused.append(token)
        return refused

    def _telling(self, written: bytes, told: frozenset[str], before: bytes = b"") -> list[int]:
        """The tokens that, after the text `before`, go on towards one of the strings that are told apart."""
        by_bytes = self._vocabulary.by_bytes
        found: set[int] = set()
        for each in told:
            whole = written_key(each)
            rest = whole[len(written) :] if whole.startswith(written) else b""
            for end in range(0 if before else 1, min(len(rest), self._vocabulary.longest) + 1):
                found.update(by_bytes.get(before + rest[:end], ()))
        return list(found)

    def _by_part(self, state: State, candidates: Ids, part_of: Parts, parts: list[bytes], more: bytes) -> list[int]:
        """The refused ones of tokens that share a part: as one, where what stands beside the part makes no difference."""
        part = part_of[candidates]
        refused: list[int] = []
        alone = [candidates[part < 0]]
        for each in np.unique(part[part >= 0]).tolist():
            members = candidates[part == each]
            if self._reader.read(state, parts[each]) is None:
                refused += members.tolist()
            elif more and self._reader.read(state, parts[each] + more) is None:
                told = self._reader.told(state) if state.at is At.VALUE and len(members) > _MANY else None
                telling = np.isin(members, self._telling(b"", told, parts[each])) if told is not None else None
                if telling is not None and self._reader.read(state, parts[each] + _FOREIGN) is None:
                    refused += members[~telling].tolist()
                    members = members[telling]
                alone.append(members)
        return refused + self._one_by_one(state, np.concatenate(alone))

    def _one_by_one(self, state: State, candidates: Ids) -> list[int]:
        tokens, label = self._vocabulary.tokens, self._reader.labels(state)
        refused: list[int] = []
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

    def _may_strand(self, state: State, refused: list[int]) -> bool:
        """Whether a token that is allowed here may lead to where all that follow are refused."""
        frame = state.frame
        assert frame is not None, "asked in a loose container"
        if state.at in (At.KEY, At.IN_KEY):
            return self._grammar.judge.refuses_keys(frame)
        if state.at is At.AFTER:
            return bool(refused)
        return any(self._grammar.judge.is_sensitive(frame, kind) for kind in ("string", "number", "boolean"))

    def _dead_ends(self, row: MaskRow) -> list[int]:
        """Of few tokens that complete something, those after which nothing could follow."""
        if _count(row) > _MAX_PROBED:
            return []
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
        return len(tokens)

    def _following(self, token: int) -> State | None:
        """The state after a token that the inner grammar takes."""
        state = self._states[-1]
        if token in self._eos:
            return state if self._reader.may_end(state) else None
        return self._reader.read(state, self._vocabulary.tokens[token])

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


def _count(row: MaskRow) -> int:
    """How many tokens are allowed."""
    return int.from_bytes(row.tobytes(), "little").bit_count()
