"""What a regular part of a grammar reads where: its automaton of positions, a little larger than its language.

Used by `lexemes.py` to tell which lexemes may run into one another. Counted repeats are taken for endless ones, which only
makes it more careful.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from branchpoint.constrained.cfg import Alt, Chars, Lit, Part, Ref, Rep, Seq
from branchpoint.constrained.charset import CharSet

__all__ = ["Automaton", "Reads", "TooManyPositions"]

_MAX_DEPTH = 300
_MAX_STEPS = 400_000


class TooManyPositions(Exception):
    """The grammar's parts have more positions than are looked at."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Positions that a part may begin and end with, and whether it may be empty."""

    first: frozenset[int]
    last: frozenset[int]
    nullable: bool


_EMPTY = Reads(frozenset(), frozenset(), True)


@dataclass(slots=True)
class Automaton:
    """Positions of any number of parts: what each reads and which may follow it within its part."""

    rules: Mapping[str, Part]
    limit: int
    chars: list[CharSet] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    steps: int = 0

    def add(self, part: Part, depth: int = 0) -> Reads:
        """The positions of one more part, rules inlined. Raises TooManyPositions, too where it nests deep."""
        if depth > _MAX_DEPTH:
            raise TooManyPositions
        match part:
            case Lit(text):
                return self._join([self._position(((ord(char), ord(char)),)) for char in text])
            case Chars(chars):
                return self._position(chars)
            case Ref(name):
                return self.add(self.rules[name], depth + 1)
            case Seq(parts):
                return self._join([self.add(each, depth + 1) for each in parts])
            case Alt(branches):
                read = [self.add(each, depth + 1) for each in branches]
                return Reads(
                    frozenset().union(*(each.first for each in read)),
                    frozenset().union(*(each.last for each in read)),
                    any(each.nullable for each in read),
                )
            case Rep(body, low, high):
                return self._repeat(self.add(body, depth + 1), low, high)
            case _:
                raise AssertionError(f"{part} is not regular")

    def _position(self, chars: CharSet) -> Reads:
        if len(self.chars) >= self.limit:
            raise TooManyPositions
        self.chars.append(chars)
        self.follow.append(set())
        here = frozenset({len(self.chars) - 1})
        return Reads(here, here, False)

    def _repeat(self, read: Reads, low: int, high: int | None) -> Reads:
        if high != 1:
            self._connect(read.last, read.first)
        return Reads(read.first, read.last, read.nullable or not low)

    def _connect(self, ends: frozenset[int], begins: frozenset[int]) -> None:
        self.steps += len(ends) * len(begins)
        if self.steps > _MAX_STEPS:
            raise TooManyPositions
        for position in ends:
            self.follow[position] |= begins

    def _join(self, parts: list[Reads]) -> Reads:
        whole = _EMPTY
        for read in parts:
            self._connect(whole.last, read.first)
            whole = Reads(
                whole.first | read.first if whole.nullable else whole.first,
                whole.last | read.last if read.nullable else read.last,
                whole.nullable and read.nullable,
            )
        return whole
