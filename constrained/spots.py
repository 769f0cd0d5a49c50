"""Walks an outline, character by character: at each spot it is known whether a JSON value may begin, and which.

Made by `tags.py`, which explores it once; `engines/tagged.py` walks it with the text of an output.
"""

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from branchpoint.constrained.cfg import Chars
from branchpoint.constrained.outline import Fork, Outline, Unfollowable, Until, Value, Word
from branchpoint.constrained.words import Words

__all__ = ["Seams", "Spot", "Spots"]

_MOST_SPOTS = 100_000
_At = tuple[int, int | str]
"""A state, and how far it is: the characters of a word that are written, what is written of the words that end a text."""


class Spot:
    """Where a text may stand, and the JSON value that may begin here. `following` and `behind` remember what was asked."""

    __slots__ = ("behind", "elements", "following", "value")

    def __init__(self, elements: frozenset[_At], value: Value | None) -> None:
        self.elements = elements
        self.value = value
        self.following: dict[int, Spot | None] = {}
        self.behind: Spot | None = None


@dataclass(frozen=True, slots=True)
class Seams:
    """The characters before which a value may begin, and whether one may begin right behind another."""

    before: frozenset[str]
    adjoining: bool


class Spots:
    """For one outline; shared by cursors. Remembers the spots that were reached."""

    def __init__(self, outline: Outline) -> None:
        self._states = outline.states
        self._known: dict[frozenset[_At], Spot] = {}
        self._words: dict[tuple[tuple[str, ...], tuple[str, ...]], Words] = {}
        for state, _ in outline.states:
            if isinstance(state, Until):
                key = (state.stops, state.excludes)
                self._words.setdefault(key, Words(*key))
        self._points = sorted({0} | {point for state, _ in outline.states for point in self._cuts(state)})
        self.start = self._spot(self._closure((outline.start,)))

    def _cuts(self, state: object) -> Iterator[int]:
        """Where the characters that a state tells apart begin, and end."""
        match state:
            case Word(text):
                chars: Iterable[str] = text
            case Until(_, stops, excludes):
                chars = self._words[stops, excludes].chars
            case Chars(ranges):
                chars = ()
                yield from (edge for low, high in ranges for edge in (low, high + 1))
            case Value(_, starts):
                chars = starts
            case _:
                return
        yield from (edge for char in chars for edge in (ord(char), ord(char) + 1))

    def step(self, spot: Spot, char: str) -> Spot | None:
        """The spot after one more character that doesn't begin a value; None where none of the readings takes it."""
        point = self._points[bisect.bisect_right(self._points, ord(char)) - 1]
        if point not in spot.following:
            reached = frozenset(at for each in spot.elements for at in self._stepped(each, chr(point)))
            spot.following[point] = self._spot(reached) if reached else None
        return spot.following[point]

    def _stepped(self, at: _At, char: str) -> Iterable[_At]:
        number, progress = at
        state, after = self._states[number]
        match state:
            case Word(text):
                assert isinstance(progress, int), "a word is read by counting"
                if text[progress] != char:
                    return ()
                return ((number, progress + 1),) if progress + 1 < len(text) else self._closure((after,))
            case Until(stop, stops, excludes):
                suffix, stopped, excluded = self._words[stops, excludes].step(str(progress), char)
                if excluded or (stopped and stop not in stopped):
                    return ()
                return self._closure((after,)) if stopped else ((number, suffix),)
            case Chars(ranges):
                return self._closure((after,)) if any(low <= ord(char) <= high for low, high in ranges) else ()
        return ()

    def _closure(self, numbers: Iterable[int]) -> frozenset[_At]:
        """What may be read from states on, through forks."""
        found: set[_At] = set()
        seen: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            state, _ = self._states[number]
            if isinstance(state, Fork):
                waiting += state.targets
                if not state.targets:
                    found.add((number, 0))
            else:
                found.add((number, "" if isinstance(state, Until) else 0))
        return frozenset(found)

    def _spot(self, elements: frozenset[_At]) -> Spot:
        known = self._known.get(elements)
        if known is None:
            values = self._values(elements)
            known = self._known.setdefault(elements, Spot(elements, values[0][0] if values else None))
        return known

    def _values(self, elements: Iterable[_At]) -> list[tuple[Value, int]]:
        states = (self._states[number] for number, _ in elements)
        return [(state, after) for state, after in states if isinstance(state, Value)]

    def behind(self, spot: Spot) -> Spot:
        """The spot after the value that may begin at `spot`."""
        if spot.behind is None:
            spot.behind = self._spot(self._closure(after for _, after in self._values(spot.elements)))
        return spot.behind

    def explore(self) -> Seams:
        """Go everywhere. Raises Unfollowable where a value can't be told from what else may come in its place."""
        before, adjoining = set[str](), False
        seen = {self.start}
        waiting = [self.start]
        while waiting:
            spot = waiting.pop()
            reached = {char: self.step(spot, char) for char in self._telling(spot)}
            if spot.value is not None:
                self._check(spot)
                adjoining = adjoining or self.behind(spot).value is not None
            before.update(char for char, each in reached.items() if each is not None and each.value is not None)
            for each in (*reached.values(), self.behind(spot) if spot.value is not None else None):
                if each is not None and each not in seen:
                    seen.add(each)
                    waiting.append(each)
            if len(seen) > _MOST_SPOTS:
                raise Unfollowable("what stands around it is too large to follow")
        return Seams(frozenset(before), adjoining)

    def _telling(self, spot: Spot) -> Iterable[str]:
        """A character of each kind that leads on from a spot."""
        found: set[int] = set()
        open_ended = False
        for number, progress in spot.elements:
            state, _ = self._states[number]
            if isinstance(state, Word):
                found.update((ord(state.text[int(progress)]),))
            elif isinstance(state, Until | Chars):
                open_ended = True
                found.update(self._cuts(state))
        if open_ended:
            found |= {0, *(code + 1 for code in found)}
        return map(chr, sorted(code for code in found if code < 0x110000))

    def _check(self, spot: Spot) -> None:
        values = {value for value, _ in self._values(spot.elements)}
        if len(values) > 1 or any(self.step(spot, char) is not None for value in values for char in value.starts):
            raise Unfollowable("what comes in its place can't be told from it by its first character")
