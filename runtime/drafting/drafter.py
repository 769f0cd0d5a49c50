"""The protocol of this room: whoever can guess what comes next implements `Drafter`; `Speculation` asks them in turn.

Guesses cost time, never text: a drafter may be wrong, silent or late as it likes.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from branchpoint.runtime.plan import GuessesUnderWay, Odds
from branchpoint.runtime.sequence import Sequence

__all__ = ["Drafter", "Proposal", "ask_each"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses for the tokens behind a sequence, in order.

    `grade` sorts a drafter's proposals by how sure it is (a matched length, say): acceptance is measured for each grade of each
    drafter. `odds` tell of each guess what it was drawn from, where the engine verifies by rejection and it was drawn. Where
    several tokens may come at a place, `depths` tell how many guesses each one stands behind (see `Slot`). Of guesses at the same
    place the likelier stand first. Guesses that are still `under_way` are a chain of `UNKNOWN`; `sources` are their rows.
    """

    tokens: tuple[int, ...]
    grade: int = 0
    odds: tuple[Odds, ...] = ()
    depths: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    under_way: GuessesUnderWay | None = None

    @property
    def places(self) -> Many[int]:
        """For each guess how many it stands behind."""
        return self.depths or range(len(self.tokens))

    @property
    def ranks(self) -> list[int]:
        """For each guess which one it is of several for the same token, from 1; 0 for one that is alone."""
        found, beside = [0] * len(self.tokens), list[list[int]]()
        for number, depth in enumerate(self.depths):
            del beside[depth + 1 :]
            if len(beside) == depth:
                beside.append([])
            beside[depth].append(number)
            if len(beside[depth]) > 1:
                found[beside[depth][0]] = 1
                found[number] = len(beside[depth])
        return found

    def beside(self, others: Iterable[tuple[int, tuple[int, ...]]]) -> "Proposal":
        """This chain, and other ways in which it may go on behind its first so many guesses, the likelier before the others."""
        tokens, depths = list(self.tokens), list(range(len(self.tokens)))
        for place, way in sorted(others, key=lambda other: -other[0]):
            tokens += way
            depths += range(place, place + len(way))
        return Proposal(tuple(tokens), self.grade, (), tuple(depths)) if len(tokens) > len(self.tokens) else self

    def cut(self, count: int) -> "Proposal":
        """The first `count` guesses."""
        return self.pick(range(count)) if count < len(self.tokens) else self

    def without(self, ends: frozenset[int]) -> "Proposal":
        """The guesses without these tokens and all that stands behind one of them."""
        if ends.isdisjoint(self.tokens):
            return self
        kept, depth = list[int](), 0
        for number, (token, place) in enumerate(zip(self.tokens, self.places, strict=True)):
            if place <= depth:
                depth = place
                if token not in ends:
                    kept.append(number)
                    depth += 1
        return self.pick(kept)

    def pick(self, kept: Many[int]) -> "Proposal":
        """The guesses of these numbers, ascending, among which are all that one of them stands behind."""
        if len(kept) == len(self.tokens):
            return self
        tokens = tuple(self.tokens[number] for number in kept)
        depths = tuple(self.depths[number] for number in kept) if self.depths else ()
        if depths == tuple(range(len(depths))):
            depths = ()
        return Proposal(tokens, self.grade, self.odds[: len(kept)], depths, self.sources[: len(kept)], self.under_way)


class Drafter(Protocol):
    """Guesses for the sequences of a batch. Used by the engine's thread only; nothing it does may change a sequence."""

    @property
    def name(self) -> str:
        """What options and reports call it."""

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """Guesses for each sequence, at most as many behind each other as `wanted` says (at least 1); those it has none for are
        left out.
        """

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """`sequence` has ended: forget it. With `kept` its output is whole and may be remembered as an example."""

    def close(self) -> None:
        """Give back what it holds."""


def ask_each(wanted: Mapping[Sequence, int], propose: Callable[[Sequence, int], Proposal | None]) -> dict[Sequence, Proposal]:
    """The answers of a drafter that looks at one sequence at a time."""
    found = {}
    for sequence, count in wanted.items():
        proposal = propose(sequence, count)
        if proposal is not None and proposal.tokens:
            found[sequence] = proposal
    return found
