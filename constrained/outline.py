"""What surrounds the JSON values of a structural tag, as an automaton over characters: so that it is known where a value begins.

`tags.py` makes it from the parts that it makes the grammar from; `spots.py` walks it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from branchpoint.constrained.cfg import Alt, Chars, Lit, Part, Raw, Ref, Rep, Seq
from branchpoint.constrained.errors import GrammarError

__all__ = ["Fork", "Outline", "Unfollowable", "Until", "Value", "Word", "make_outline"]

_MOST_STATES = 50_000


class Unfollowable(GrammarError):
    """Where a value begins can't be told from what is written before it; says why."""


@dataclass(frozen=True, slots=True)
class Word:
    """The text itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Until:
    """Text up to and with `stop`, the first of `stops` in it; without one (None) as much as there is, without any of `stops`.

    Nowhere in it is one of `excludes`.
    """

    stop: str | None
    stops: tuple[str, ...]
    excludes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value, by its name; `starts` are the characters that it may begin with."""

    name: str
    starts: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Nothing is read; what follows is any of these states."""

    targets: tuple[int, ...]


State = Word | Until | Value | Chars | Fork


@dataclass(frozen=True, slots=True)
class Outline:
    """States by number, with what follows each (a Fork tells that itself), and the first."""

    states: tuple[tuple[State, int], ...]
    start: int


def make_outline(part: Part, rules: Mapping[str, Part], raws: Mapping[str, Until | Value], prefix: str) -> Outline:
    """The outline of a part that refers to `rules`, behind the text `prefix`; `raws` are its Raws by what they say.

    Raises Unfollowable for rules that refer to themselves, and for what is very large.
    """
    builder = _Builder(rules, raws)
    start = builder.add(Seq((Lit(prefix), part)), builder.state(Fork(())))
    return Outline(tuple(builder.states), start)


@dataclass(slots=True)
class _Builder:
    """Adds parts from the last to the first."""

    rules: Mapping[str, Part]
    raws: Mapping[str, Until | Value]
    states: list[tuple[State, int]] = field(default_factory=list)
    within: set[str] = field(default_factory=set)

    def state(self, state: State, after: int = -1) -> int:
        if len(self.states) >= _MOST_STATES:
            raise Unfollowable("what stands around it is too large to follow")
        self.states.append((state, after))
        return len(self.states) - 1

    def add(self, part: Part, after: int) -> int:
        """The state that begins a part behind which `after` comes."""
        match part:
            case Lit(text):
                return self.state(Word(text), after) if text else after
            case Chars():
                return self.state(part, after)
            case Seq(parts):
                for each in reversed(parts):
                    after = self.add(each, after)
                return after
            case Alt(branches):
                return self.state(Fork(tuple(self.add(each, after) for each in branches)))
            case Rep():
                return self._repeat(part, after)
            case Raw(name):
                if name not in self.raws:
                    raise Unfollowable("a grammar in Lark's notation stands beside it; write that one in GBNF")
                return self.state(self.raws[name], after)
            case Ref(name):
                return self._refer(name, after)
            case _:
                raise AssertionError(f"{part} is made later")

    def _repeat(self, part: Rep, after: int) -> int:
        low, high = part.low, part.high
        if high is None:
            loop = self.state(Fork(()))
            self.states[loop] = Fork((self.add(part.body, loop), after)), -1
            after, high = loop, low
        at = after
        for number in range(high, 0, -1):
            first = self.add(part.body, at)
            at = first if number <= low else self.state(Fork((first, after)))
        return at

    def _refer(self, name: str, after: int) -> int:
        if name in self.within:
            raise Unfollowable("a grammar with rules that refer to themselves stands beside it")
        self.within.add(name)
        first = self.add(self.rules[name], after)
        self.within.remove(name)
        return first
