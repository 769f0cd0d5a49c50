"""Any grammar in at most so many tokens: near the limit only what still leads to an end is left, so that no output is cut.

Around the matcher of another engine. With each token goes a way from there to an end, which was tried on the grammar. A token
behind which no way that is found fits into what is left is refused, so that there always is one; where nothing is to spare, it is
taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from branchpoint.constrained.clock import Clock
from branchpoint.constrained.completion import Completer, Standing, Way, pieces
from branchpoint.constrained.engines.scout import Scout, take
from branchpoint.constrained.errors import TooFewTokens
from branchpoint.constrained.grammar import CompiledGrammar, MaskRow, Matcher, Residue
from branchpoint.constrained.mask import allow
from branchpoint.constrained.spec import Narrowing

__all__ = ["Limit", "SteerableGrammar", "SteeredGrammar", "SteeredMatcher"]

_EFFORT_AT_START = 400
_EFFORT = 24
_EFFORT_FOR_LESS = 64
_SHORT = 8  # tokens of the first way up to which a shorter one is looked for
_NEAR = 64  # tokens left up to which a way that isn't known is sought behind each token
_RARELY = 16  # tokens from one such search to the next, where the limit isn't near
_PATIENCE = 8  # tokens refused in one place, after which the way is taken
_SECONDS = 0.1  # of CPU that looking behind tokens may take in one place, after which the way is taken, too


@dataclass(frozen=True, slots=True)
class Limit:
    """An output may have `tokens` more; those within its next `healed` bytes don't count, while `room` for all is left."""

    tokens: int
    room: int
    healed: int = 0

    def after(self, length: int) -> "Limit":
        """What is left behind a token of `length` bytes."""
        repeats = 0 < length <= self.healed
        return Limit(min(self.tokens - (not repeats), self.room - 1), self.room - 1, max(0, self.healed - length))


class SteerableGrammar:
    """`inner`, and a short sentence of it, from which steering starts. Its own cursors have no limit; see `within`."""

    def __init__(self, completer: Completer, inner: CompiledGrammar, start: Standing) -> None:
        self.completer = completer
        self.inner = inner
        self.start = start
        self.way = self._shortest(start)

    def _shortest(self, start: Standing) -> Way | None:
        """A way from the start; where it is so short that few tokens more or less count, a shorter one if there is one."""
        way = self.completer.find(self.inner.matcher(), start, _EFFORT_AT_START)
        if way is None or not 1 < len(way) <= _SHORT:
            return way
        shorter = self.completer.find(self.inner.matcher(), Standing(is_json=False), _EFFORT_FOR_LESS, len(way) - 1)
        return way if shorter is None else shorter

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What was made stricter than asked."""
        return self.inner.narrowed

    def matcher(self) -> Matcher:
        """A new cursor at the start."""
        return self.inner.matcher()

    def within(self, limit: Limit) -> "SteeredGrammar":
        """The same, steered to an end within a limit. Raises TooFewTokens where no sentence was found that fits."""
        if self.way is None:
            raise TooFewTokens('close="steer" knows no complete output of this constraint; leave it out, and outputs may be cut.')
        if self.spare(limit, self.way) < 0:
            raise TooFewTokens(
                f"The output may have {limit.tokens} tokens (max_tokens, and what the context leaves); the shortest complete one "
                f"that was found has {limit.tokens - self.spare(limit, self.way)}. Allow more tokens."
            )
        return SteeredGrammar(self, limit)

    def spare(self, limit: Limit, way: Way) -> int:
        """How many tokens are left behind a way; below 0 where it doesn't fit."""
        for at, token in enumerate(way):
            if not limit.healed:
                return min(limit.tokens, limit.room) - (len(way) - at)
            limit = limit.after(len(self.completer.vocabulary.tokens[token]))
        return limit.tokens


class SteeredGrammar:
    """A steerable grammar within a limit: equal to the same within another, so that what is remembered of one serves all."""

    def __init__(self, grammar: SteerableGrammar, limit: Limit) -> None:
        self.grammar = grammar
        self.limit = limit

    @property
    def narrowed(self) -> tuple[Narrowing, ...]:
        """What was made stricter than asked; that outputs end within the limit was asked."""
        return self.grammar.narrowed

    def matcher(self) -> "SteeredMatcher":
        """A new cursor at the start."""
        return SteeredMatcher(self.grammar, self.limit)

    def __eq__(self, other: object) -> bool:
        """Whatever the limits: what is remembered of one grammar's outputs serves the other's."""
        return isinstance(other, SteeredGrammar) and self.grammar is other.grammar

    def __hash__(self) -> int:
        return hash(self.grammar)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known behind a token: the text's standing, what is left, a way to an end (None: none is known)."""

    standing: Standing
    limit: Limit
    way: Way | None


class SteeredMatcher:
    """The cursor of one sequence (`grammar.Matcher`), and its own residue: what is drawn is asked for a way behind it."""

    def __init__(self, grammar: SteerableGrammar, limit: Limit) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.completer.vocabulary
        self._inner = grammar.inner.matcher()
        self._eos = frozenset(self._vocabulary.eos)
        self._tokens: list[int] = []
        self._steps = [_Step(grammar.start, limit, grammar.way)]
        self._ahead: dict[int, _Step | None] = {}
        self._left = _SECONDS
        self._residue: Residue | None = None
        self._scout = Scout(grammar.inner)

    def fill(self, row: MaskRow) -> None:
        """Write the tokens that may come next; `allows` still refuses some of them near the limit."""
        self._inner.fill(row)
        self._steer(row)

    def fill_loosely(self, row: MaskRow) -> "SteeredMatcher":
        """Write the tokens that may come next and some that may not; which of them is left to ask."""
        self._residue = self._inner.fill_loosely(row)
        self._steer(row)
        return self

    def narrow(self, row: MaskRow) -> None:
        """Take out of a row what the inner grammar refuses, and where much was refused already, all but the way."""
        if self._residue is not None and not self._steer(row):
            self._residue.narrow(row)
        if self._left <= 0 or sum(step is None for step in self._ahead.values()) >= _PATIENCE:
            self._take_way(row)

    def _steer(self, row: MaskRow) -> bool:
        """Leave only the way where nothing is to spare; whether it is so."""
        step = self._steps[-1]
        if step.way is None or self._grammar.spare(step.limit, step.way) > 0:
            return False
        self._take_way(row)
        return True

    def _take_way(self, row: MaskRow) -> None:
        way = self._steps[-1].way
        if way is not None:
            row[:] = 0
            allow(row, [*way[:1], *(self._vocabulary.eos if self._inner.can_end else ())])

    def allows(self, token: int) -> bool:
        """Whether a token that the inner grammar's row has may come next (`grammar.Residue`)."""
        if self._residue is not None and not self._residue.allows(token):
            return False
        return token in self._eos or self._reached(token) is not None

    def _reached(self, token: int) -> _Step | None:
        """What is known behind a token; None where it is refused."""
        if token not in self._ahead:
            if self._inner.advance((token,)) != 1:
                return None
            clock = Clock(self._left)
            try:
                self._ahead[token] = self._look(token, clock)
            finally:
                self._inner.rollback(1)
                self._left = clock.left()
        return self._ahead[token]

    def _look(self, token: int, clock: Clock) -> _Step | None:
        """What is known behind a token that the inner cursor has taken."""
        grammar, step = self._grammar, self._steps[-1]
        text = self._vocabulary.tokens[token]
        standing = grammar.completer.after(step.standing, token)
        limit = step.limit.after(len(text))
        way, begun = self._rest(step.way, text, clock) if step.way is not None else (None, ())
        if way is None or grammar.spare(limit, way) < 0:
            shorter = self._search(token, standing, limit, begun, clock)
            way = shorter if shorter is not None else way
        if way is not None and grammar.spare(limit, way) < 0:
            way = None
        return None if way is None and step.way is not None else _Step(standing, limit, way)

    def _rest(self, way: Way, text: bytes, clock: Clock) -> tuple[Way | None, Way]:
        """What is left of a way that was known before `text` was written, None where it leads to no end; and how far it leads.

        What `text` has of it is left out, or, as where characters are counted, as many bytes as were written.
        """
        known = self._vocabulary.text(way)
        if text and known.startswith(text):  # what is left of it was tried with it
            rest = self._cut(way, len(text))
            return rest, rest
        lengths = [length for length in range(min(len(text), len(known)), -1, -1) if text.endswith(known[:length])]
        furthest: Way = ()
        for length in dict.fromkeys((*lengths, min(len(text), len(known)))):
            rest = self._cut(way, length)
            taken = take(self._inner, rest, clock)
            fits = taken == len(rest) and self._inner.can_end
            self._inner.rollback(taken)
            if fits:
                return rest, rest
            furthest = max(furthest, rest[:taken], key=len)
        return None, furthest

    def _cut(self, way: Way, length: int) -> Way:
        """A way without its first `length` bytes."""
        at = 0
        while length > 0:
            text = self._vocabulary.tokens[way[at]]
            at += 1
            if length < len(text):
                return (*pieces(self._vocabulary, text[length:]), *way[at:])
            length -= len(text)
        return way[at:]

    def _search(self, token: int, standing: Standing, limit: Limit, begun: Way, clock: Clock) -> Way | None:
        if limit.tokens < 0 or (limit.tokens > _NEAR and self._steps[-1].way is None and len(self._tokens) % _RARELY):
            return None
        cursor = self._scout.behind((*self._tokens, token), clock)
        if cursor is None:
            return None
        found = self._grammar.completer.find(cursor, standing, _EFFORT, limit.tokens, begun, clock)
        if found is None:
            self._scout.drop()
        return found

    def advance(self, tokens: Sequence[int]) -> int:
        """Consume tokens in order; how many were accepted. One that nobody asked about is taken though it may lead too far."""
        for count, token in enumerate(tokens):
            step = self._steps[-1] if token in self._eos else self._reached(token)
            if self._inner.advance((token,)) != 1:
                return count
            if step is None:
                text = self._vocabulary.tokens[token]
                standing = self._grammar.completer.after(self._steps[-1].standing, token)
                step = _Step(standing, self._steps[-1].limit.after(len(text)), None)
            self._steps.append(step)
            self._tokens.append(token)
            self._leave()
        return len(tokens)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens. Raises MatcherError past the start."""
        self._inner.rollback(count)
        if count:
            del self._steps[-count:], self._tokens[-count:]
            self._leave()

    def _leave(self) -> None:
        """Forget what was found out in the place where it was."""
        self._ahead = {}
        self._left = _SECONDS

    def forced(self) -> list[int]:
        """The tokens that the inner grammar forces, as long as there is a way behind them."""
        kept = list[int]()
        for token in self._inner.forced():
            if self._reached(token) is None:
                break
            kept.append(token)
            self.advance((token,))
        self.rollback(len(kept))
        return kept

    @property
    def way(self) -> Way | None:
        """The way to an end that is known; None where none is, as behind what was taken though nobody asked about it."""
        return self._steps[-1].way

    @property
    def can_end(self) -> bool:
        """Whether the output so far is a complete sentence."""
        return self._inner.can_end

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token can follow."""
        return self._inner.finished
