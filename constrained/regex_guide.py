"""What a text under a pattern still needs, told from what is written: guesses at the shortest way to its end.

Asked by `completion.py`, as `guide.py` is for JSON. Follows the automaton of the pattern's characters.
"""

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from branchpoint.constrained.automaton import Positions, read_positions
from branchpoint.constrained.charset import CharSet
from branchpoint.constrained.regex import Node
from branchpoint.constrained.shortest import liked

__all__ = ["RegexPlace", "regex_place"]

_MOST_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class _Map:
    """The automaton, and how many characters are needed behind each position (those from which no end is reached have none)."""

    positions: Positions
    needed: dict[int, int]

    def after(self, at: frozenset[int] | None) -> frozenset[int]:
        """The positions that may come next; None stands for the start."""
        if at is None:
            return self.positions.first
        return frozenset().union(*(self.positions.follow[each] for each in at))


@dataclass(frozen=True, slots=True)
class RegexPlace:
    """Where a text stands: `at` are the positions it may be at, `rest` bytes of a character that is not whole yet.

    `skip` counts bytes before the text that are still to come.
    """

    map: _Map
    at: frozenset[int] | None
    skip: int
    rest: bytes = b""

    def after(self, text: bytes) -> "RegexPlace":
        """The place after some more text, which the grammar takes."""
        text, skip = self.rest + text[self.skip :], max(0, self.skip - len(text))
        whole = text.decode(errors="ignore")
        rest = text[len(whole.encode()) :]
        at = self.at
        for char in whole:
            at = frozenset(each for each in self.map.after(at) if _has(self.map.positions.chars[each], ord(char)))
        return replace(self, at=at, skip=skip, rest=rest)

    def guesses(self) -> Iterator[bytes]:
        """The text of fewest characters that leads to an end."""
        needed, written = self.map.needed, list[str]()
        at = self.at
        while not self.rest and not (self._ends(at)):
            following = [each for each in self.map.after(at) if each in needed]
            if not following:
                return
            best = min(following, key=lambda each: (needed[each], each))
            written.append(chr(liked(self.map.positions.chars[best])))
            at = frozenset({best})
        if written:
            yield "".join(written).encode()

    def _ends(self, at: frozenset[int] | None) -> bool:
        return self.map.positions.nullable if at is None else not at.isdisjoint(self.map.positions.last)


def regex_place(node: Node, prefix: int) -> RegexPlace | None:
    """The place before a text under a pattern, behind `prefix` bytes; None where it has too many characters to follow."""
    positions = read_positions(node, _MOST_POSITIONS)
    return None if positions is None else RegexPlace(_Map(positions, _needed(positions)), None, prefix)


def _needed(positions: Positions) -> dict[int, int]:
    before: dict[int, list[int]] = {}
    for each, following in enumerate(positions.follow):
        for other in following:
            before.setdefault(other, []).append(each)
    found = dict.fromkeys(positions.last, 0)
    waiting = deque(found)
    while waiting:
        each = waiting.popleft()
        for other in before.get(each, ()):
            if other not in found:
                found[other] = found[each] + 1
                waiting.append(other)
    return found


def _has(chars: CharSet, code: int) -> bool:
    at = bisect.bisect_right(chars, (code, 0x110000)) - 1
    return at >= 0 and chars[at][0] <= code <= chars[at][1]
