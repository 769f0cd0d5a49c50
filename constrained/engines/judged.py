"""A grammar that takes too much, and a judge who refuses what is too much: together exact.

Around llguidance's matcher for schemas with loose places. A token is refused where the value can't become valid after it, or
where, as far as a bounded look ahead tells, nothing could follow.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from branchpoint.constrained.engines.watch import Watch
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher
from branchpoint.constrained.mask import allocate, forbid, is_empty, iterate_allowed
from branchpoint.constrained.spec import Narrowing
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.constrained.work import Allowance

__all__ = ["JudgedGrammar", "JudgedMatcher"]

_MAX_PROBED = 16
_MAX_FOLLOWED = 8
_BUDGET = 32
_REMEMBERED = 64  # tokens whose text was read: guesses are asked about more than once
_FEW_ASKED = 8  # tokens to ask about before a whole row is cut to see whether any may follow
_Place = TypeVar("_Place")


class JudgedGrammar(Generic[_Place]):
    """`inner` takes all that `watch` lets pass, and more."""

    def __init__(self, vocabulary: Vocabulary, inner: CompiledGrammar, watch: Watch[_Place]) -> None:
        self.vocabulary = vocabulary
        self.watch = watch
        self.inner = inner

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What the inner grammar narrowed."""
        return self.inner.narrowed

    def matcher(self) -> "JudgedMatcher[_Place]":
        """A new cursor at the start."""
        return JudgedMatcher(self, self.inner.matcher())


class JudgedMatcher(Generic[_Place]):
    """The cursor of one sequence (`grammar.Matcher`): the inner cursor, and the watch's place after each token."""

    def __init__(self, grammar: JudgedGrammar[_Place], inner: Matcher) -> None:
        self._vocabulary = grammar.vocabulary
        self._watch = grammar.watch
        self._inner = inner
        self._places: list[_Place] = [grammar.watch.start()]
        self._eos = frozenset(self._vocabulary.eos)
        self._row: MaskRow = allocate(1, self._vocabulary.size)[0]
        self._allowance = Allowance(grammar.watch.work)
        self._ahead: dict[tuple[int, int], tuple[_Place, _Place | None]] = {}  # what was read: a place, and what a token led to

    def fill(self, row: MaskRow) -> None:
        """Write the tokens that may come next. Raises MatcherError where there is none."""
        self._fill_inner(row)
        self.narrow(row)

    def fill_loosely(self, row: MaskRow) -> "JudgedMatcher[_Place]":
        """Write the tokens that the inner grammar takes; which of them the judge refuses is left to ask."""
        self._fill_inner(row)
        return self

    def _fill_inner(self, row: MaskRow) -> None:
        self._inner.fill(row)
        if self._inner.can_end and not self._watch.may_end(self._places[-1]):
            forbid(row, self._eos)

    def allows(self, token: int) -> bool:
        """Whether a token that the inner grammar takes may come next (`grammar.Residue`).

        One token can be followed further than all of a row: what leads nowhere is refused here even where `fill` doesn't look.
        """
        if token in self._eos:
            return self.can_end
        with self._allowance:
            reached, place = self._reached(token), self._places[-1]
            if reached is None:
                return False
            sure = not self._watch.may_strand(place) and not self._may_strand(reached)
            return sure or self._goes_on(place, token, [_BUDGET])

    def narrow(self, row: MaskRow) -> None:
        """Take out of a row what the judge refuses. Raises MatcherError where nothing is left."""
        place = self._places[-1]
        with self._allowance:
            self._watch.cut(row, place)
            if (self._watch.may_strand(place) or self._watch.may_count(place)) and _count(row) <= _MAX_PROBED:
                forbid(row, self._dead_ends(row, place))
        if is_empty(row):
            raise MatcherError(
                f"The grammar can't be followed any further after {len(self._places) - 1} tokens: "
                "what is written can't become valid, which could not be told earlier."
            )

    def _dead_ends(self, row: MaskRow, place: _Place) -> list[int]:
        """Of few tokens that complete something, or write a number's last digit, those after which nothing could follow."""
        budget, strands = [_BUDGET], self._watch.may_strand(place)
        return [
            token for token in self._text(row) if (strands or self._leads_on(token)) and not self._goes_on(place, token, budget)
        ]

    def _leads_on(self, token: int) -> bool:
        """Whether it is not certain that something may follow a token."""
        reached = self._reached(token)
        return reached is not None and self._may_strand(reached)

    def _may_strand(self, reached: _Place) -> bool:
        return self._watch.may_strand(reached) or self._watch.may_be_last(reached)

    def _text(self, row: MaskRow) -> list[int]:
        tokens = self._vocabulary.tokens
        return [token for token in iterate_allowed(row).tolist() if tokens[token]]

    def _goes_on(self, place: _Place, token: int, budget: list[int]) -> bool:
        """Whether something may follow `token`; where that takes too long to tell, it is taken for granted."""
        if budget[0] <= 0:
            return True
        budget[0] -= 1
        reached = self._watch.read(place, self._vocabulary.tokens[token])
        if reached is None or self._inner.advance((token,)) != 1:
            return False
        try:
            if self._inner.can_end and self._watch.may_end(reached):
                return True
            row = self._row.copy()
            self._inner.fill(row)
            if self._watch.writes_number(reached) or _count(row) > _MAX_FOLLOWED:
                return self._any_allowed(row, reached)
            return any(self._goes_on(reached, each, budget) for each in self._text(row))
        finally:
            self._inner.rollback(1)

    def _any_allowed(self, row: MaskRow, place: _Place) -> bool:
        """Whether the judge lets one of the row's tokens pass, ends aside: a few are asked about before all are."""
        forbid(row, self._eos)
        few = iterate_allowed(row)[:_FEW_ASKED].tolist()
        if any(self._watch.read(place, self._vocabulary.tokens[token]) is not None for token in few):
            return True
        self._watch.cut(row, place)
        return not is_empty(row)

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted."""
        for count, token in enumerate(tokens):
            if self._inner.advance((token,)) != 1:
                return count
            following = self._following(token)
            if following is None:
                self._inner.rollback(1)
                return count
            self._places.append(following)
            self._allowance.renew()
        return len(tokens)

    def _following(self, token: int) -> _Place | None:
        """The place after a token that the inner grammar takes."""
        place = self._places[-1]
        if token in self._eos:
            return place if self._watch.may_end(place) else None
        with self._allowance:
            return self._reached(token)

    def _reached(self, token: int) -> _Place | None:
        """The place after a token's text, None where the judge refuses it."""
        place = self._places[-1]
        key = id(place), token  # of a place that is kept: another can't be in its stead
        if key not in self._ahead:
            if len(self._ahead) >= _REMEMBERED:
                self._ahead.clear()
            self._ahead[key] = place, self._watch.read(place, self._vocabulary.tokens[token])
        return self._ahead[key][1]

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        self._inner.rollback(count)
        if count:
            del self._places[-count:]
            self._allowance.renew()

    def forced(self) -> list[int]:
        """The tokens that the inner grammar forces, up to the first that the judge refuses."""
        if self.can_end:
            return []
        kept: list[int] = []
        place: _Place | None = self._places[-1]
        for token in self._inner.forced():
            place = self._watch.read(place, self._vocabulary.tokens[token]) if place is not None else None
            if place is None:
                break
            kept.append(token)
        return kept

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete, valid value."""
        return self._inner.can_end and self._watch.may_end(self._places[-1])

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        if not self.can_end:
            return False
        if self._inner.finished:
            return True
        row = self._row.copy()
        self._inner.fill(row)
        forbid(row, self._eos)
        if any(self.allows(token) for token in iterate_allowed(row)[:_FEW_ASKED].tolist()):
            return False
        self.fill(row)
        forbid(row, self._eos)
        return is_empty(row)


def _count(row: MaskRow) -> int:
    """How many tokens are allowed."""
    return int.from_bytes(row.tobytes(), "little").bit_count()
