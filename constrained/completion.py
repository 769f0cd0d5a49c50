"""A short way from where a cursor stands to the end of a sentence, in tokens: what an output is steered along near its limit.

Asked by `engines/steered.py`. Ways are tried on a cursor of the grammar itself, so that each one is right for any grammar; it is
a short one, not always the shortest.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.clock import Clock
from branchpoint.constrained.errors import MatcherError, TooFewTokens
from branchpoint.constrained.grammar import MaskRow, Matcher
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.constrained.nesting import Nesting
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["Completer", "Place", "Standing", "Way", "check_length", "pieces"]

Way = tuple[int, ...]
"""Tokens after which the output may end."""

_FEW = 32  # tokens of a row up to which each is looked at, not one for each first byte
_MOST_TOKENS = 16
_MOST_GUESSES = 3
_PATIENCE = 32  # places with the same row after which others come first
_REPEATING = 4  # what a place costs that looks like one that was seen, where ways are looked at by their lengths
_MOST_SECONDS = 0.4  # of CPU
_MOST_TRIED = 400
_STAYING = 3  # what it costs to go on with a string or number that could be closed
_EXITS = frozenset(b"}]),:")


class Place(Protocol):
    """Where a text stands in what it must say, as far as that is known without the cursor."""

    def after(self, text: bytes) -> "Place":
        """The place after some more text, which the grammar takes."""

    def guesses(self) -> Iterable[bytes]:
        """Texts that may come next, those that seem to lead to the end soonest first."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a text besides what the cursor knows; `is_json`: whether it is JSON, or holds some."""

    is_json: bool
    place: Place | None = None
    nesting: Nesting = field(default_factory=Nesting)


class Completer:
    """Finds ways over one vocabulary. Shared by cursors; immutable."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        states = (Nesting(), Nesting(quoted=True), Nesting(quoted=True, escaped=True))
        self._effects = {(state.quoted, state.escaped): _Effects(vocabulary, state) for state in states}

    def after(self, standing: Standing, token: int) -> Standing:
        """Behind one more token."""
        nesting = standing.nesting
        reached = self._effects[nesting.quoted, nesting.escaped].reached[token]
        place = standing.place.after(self.vocabulary.tokens[token]) if standing.place is not None else None
        return Standing(standing.is_json, place, Nesting(nesting.depth + reached.depth, reached.quoted, reached.escaped))

    def tokens(self, standing: Standing, row: MaskRow) -> list[int]:
        """Of the tokens of a row some that lead to different places, those that seem to lead to the end first."""
        nesting = standing.nesting
        return self._effects[nesting.quoted, nesting.escaped].tokens(row, is_json=standing.is_json)

    def find(
        self,
        matcher: Matcher,
        standing: Standing,
        effort: int,
        most: int = 1 << 20,
        begun: Way = (),
        clock: Clock | None = None,
    ) -> Way | None:
        """A way of at most `most` tokens; None where there is none, or it isn't seen in `effort` places and in time.

        `begun` are tokens that may lead towards the end. Where no way is found, the cursor may have broken.
        """
        try:
            return self._find(matcher, standing, _Budget(effort, clock or Clock(_MOST_SECONDS)), most, begun)
        except MatcherError:
            return None

    def _find(self, matcher: Matcher, standing: Standing, budget: "_Budget", most: int, begun: Way) -> Way | None:
        if standing.place is None and not standing.is_json:  # nothing tells where the end lies: short ways are looked at first
            way = _Search(self, matcher, by_length=True).run(standing, most, budget.half())
            if way is not None:
                return way
        return _Search(self, matcher).run(standing, most, budget, begun)


class _Budget:
    """What a search may spend: places to look at, and CPU time."""

    def __init__(self, effort: int, clock: Clock) -> None:
        self._effort = effort
        self.clock = clock

    def half(self) -> "_Budget":
        """Half of it, which is spent then."""
        self._effort -= self._effort // 2
        return _Budget(self._effort, Clock(self.clock.left() / 2))

    def spend(self) -> bool:
        """Whether another place may be looked at."""
        self._effort -= 1
        return self._effort >= 0 and self.clock.left() > 0


class _Effects:
    """What tokens do to a text that stands as `state`, and their order."""

    def __init__(self, vocabulary: Vocabulary, state: Nesting) -> None:
        self.reached = [state.after(text) for text in vocabulary.tokens]
        self._quoted = state.quoted
        self._texts = vocabulary.tokens
        self._exits = frozenset(b'"') if state.quoted else _EXITS
        keys = sorted(
            (text[0], self.reached[token].open, -len(text), token) for token, text in enumerate(vocabulary.tokens) if text
        )
        self._order = np.array([key[-1] for key in keys], dtype=np.int64)
        self._first = np.array([key[0] for key in keys], dtype=np.int16)

    def tokens(self, row: MaskRow, *, is_json: bool) -> list[int]:
        """See `Completer.tokens`: of those that begin with one byte the one that closes most, and is longest."""
        places = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[self._order])
        chosen, counts = self._order[places], [1] * len(places)
        if len(places) > _FEW:
            starts = np.flatnonzero(np.diff(self._first[places], prepend=-1))
            chosen, counts = chosen[starts], np.diff(starts, append=len(places)).tolist()
        tokens = chosen.tolist()
        rank = self._rank if not is_json else self._json_rank
        may_leave = any(self._texts[token][0] in self._exits for token in tokens)
        keys = [(*rank(token, count, may_leave), token) for token, count in zip(tokens, counts, strict=True)]
        return [token for *_, token in sorted(keys)[:_MOST_TOKENS]]

    def _rank(self, token: int, count: int, may_leave: bool) -> tuple[int, int, int]:
        """What few tokens begin with sorts first: where many go on alike, the others lead on."""
        text = self._texts[token]
        return 0, count, -len(text)

    def _json_rank(self, token: int, count: int, may_leave: bool) -> tuple[int, int, int]:
        """What sorts first closes brackets and quotes, else leads on to what must come next; in strings, what few may begin."""
        text = self._texts[token]
        first = text[0]
        stays = _STAYING if may_leave and first not in self._exits else 0
        if self._quoted:
            kind = count
        elif first in b",:":
            kind = 0
        elif first in b" \t\r\n":
            kind = 3
        else:
            kind = 1 if first > 0x7F or chr(first).isalnum() else 2
        return self.reached[token].open + stays, kind, -len(text)


class _Search:
    """One search, best first: what a path costs is how often it didn't take what seemed best; `by_length`, its tokens too.

    How a text stands behind a path is told only once something is sought from there: what reaches an end needn't be read.
    """

    def __init__(self, completer: Completer, matcher: Matcher, *, by_length: bool = False) -> None:
        self._completer = completer
        self._matcher = matcher
        self._by_length = by_length
        self._at: Way = ()
        self._row = allocate(1, completer.vocabulary.size)[0]
        self._seen: dict[tuple[bytes, int], int] = {}
        self._waiting: list[tuple[int, int, int, int, Way, Way, Standing, bool]] = []
        self._pushed = 0

    def run(self, standing: Standing, most: int, budget: _Budget, begun: Way = ()) -> Way | None:
        """See `Completer.find`."""
        self._push(0, (), (), standing)
        if begun:
            self._push(0 if standing.place is None else _MOST_GUESSES, (), begun, standing)
        try:
            while self._waiting and budget.spend():
                *_, cost, before, tokens, standing, guessed = heapq.heappop(self._waiting)
                path = before + tokens
                if len(path) > most or not self._move(path):
                    continue
                if self._matcher.can_end:
                    return path
                for token in tokens:
                    if budget.clock.left() <= 0:
                        return None
                    standing = self._completer.after(standing, token)
                if guessed:
                    self._go_on(cost, path, standing)
                else:
                    self._guess(cost, path, standing)
            return None
        finally:
            self._move(())

    def _push(self, cost: int, path: Way, tokens: Sequence[int], standing: Standing, *, guessed: bool = False) -> None:
        """Have a path looked at later, and `tokens` behind it; `standing` is that between them."""
        self._pushed += 1
        length = len(path) + len(tokens)
        rank = cost + length if self._by_length else cost
        heapq.heappush(self._waiting, (rank, -length, self._pushed, cost, path, tuple(tokens), standing, guessed))

    def _guess(self, cost: int, path: Way, standing: Standing) -> None:
        """Go where the schema says that the end lies, or where there is no choice; all else is looked at later."""
        found = dict[Way, None]()
        for guess in standing.place.guesses() if standing.place is not None else ():
            tokens = pieces(self._completer.vocabulary, guess)
            if tokens and tokens not in found and self._takes(tokens):
                found[tokens] = None
            if len(found) == _MOST_GUESSES:
                break
        if not found and (forced := self._matcher.forced()):
            self._push(cost, path, forced, standing)
            return
        for extra, tokens in enumerate(found):
            self._push(cost + extra, path, tokens, standing)
        self._push(cost + len(found), path, (), standing, guessed=True)

    def _go_on(self, cost: int, path: Way, standing: Standing) -> None:
        try:
            self._matcher.fill(self._row)
        except MatcherError:
            return  # a dead end that the grammar didn't see
        seen = self._row.tobytes(), standing.nesting.open
        self._seen[seen] = self._seen.get(seen, 0) + 1
        cost += _REPEATING * (self._seen[seen] - 1) if self._by_length else self._seen[seen] // _PATIENCE
        for extra, token in enumerate(self._completer.tokens(standing, self._row)):
            self._push(cost + extra, path, (token,), standing)

    def _takes(self, tokens: Way) -> bool:
        taken = self._matcher.advance(tokens)
        self._matcher.rollback(taken)
        return taken == len(tokens)

    def _move(self, path: Way) -> bool:
        """Put the cursor behind `path`; whether it can be."""
        shared = 0
        while shared < min(len(self._at), len(path)) and self._at[shared] == path[shared]:
            shared += 1
        self._matcher.rollback(len(self._at) - shared)
        self._at = path[: shared + self._matcher.advance(path[shared:])]
        return len(self._at) == len(path)


def pieces(vocabulary: Vocabulary, text: bytes) -> Way:
    """Tokens that spell a piece of text, none where it ends or begins within a character that has no tokens for its bytes."""
    try:
        return tuple(vocabulary.encode(text))
    except ValueError:  # bytes that this tokenizer takes only as part of longer ones
        found = [vocabulary.by_bytes.get(text[at : at + 1], ()) for at in range(len(text))]
        return tuple(each[0] for each in found) if all(found) else ()


def check_length(matcher: Matcher, tokens: int, size: int) -> None:
    """Raise TooFewTokens where it is certain that no sentence has at most `tokens` tokens, of a vocabulary of `size`.

    Where too many would have to be tried, or the cursor breaks on what is tried, nothing is certain.
    """
    try:
        short = _shortfall(matcher, allocate(tokens, size), [_MOST_TRIED])
    except MatcherError:
        return
    if short:
        raise TooFewTokens(f"max_tokens is {tokens}, and no complete output of this constraint has so few tokens. Allow more.")


def _shortfall(matcher: Matcher, rows: npt.NDArray[np.int32], tries: list[int]) -> bool:
    """Whether no way of at most `len(rows)` tokens leads to an end; each try takes one off `tries`."""
    if matcher.can_end:
        return False
    if not len(rows):
        return True
    matcher.fill(rows[0])
    following = iterate_allowed(rows[0]).tolist()
    tries[0] -= len(following)
    if tries[0] < 0:
        return False
    for token in following:
        matcher.advance((token,))
        short = _shortfall(matcher, rows[1:], tries)
        matcher.rollback(1)
        if not short:
            return False
    return True
