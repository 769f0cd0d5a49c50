"""How often guesses turned out right: by drafter, grade, place in the draft and rank there, and for each sequence by itself.

Told by `Speculation` after each step; asked before the next one how likely each guess is to be reached and right.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.sequence import Sequence

__all__ = ["Acceptance", "Rate"]

PRIOR = 0.4  # of a guess of which nothing is known
PRIOR_WEIGHT = 2.0
OWN_WEIGHT = 6.0  # guesses of its own after which a sequence's rate counts as much as that of its grade
MEMORY = 128.0  # guesses after which older ones count half
OWN_MEMORY = 32.0
PLACES = 4  # places in a draft that are told apart; later ones count as the last of them
RANKS = 4  # guesses for the same token that are told apart, likewise


@dataclass(slots=True)
class Rate:
    """A share that forgets: `tested` guesses of which `right` were."""

    right: float = 0.0
    tested: float = 0.0

    def add(self, right: int, tested: int, memory: float) -> None:
        """Count `tested` more guesses."""
        if self.tested > memory:
            self.right, self.tested = self.right / 2, self.tested / 2
        self.right += right
        self.tested += tested

    def blend(self, prior: float, weight: float) -> float:
        """The share, with `weight` guesses of rate `prior` added."""
        return (self.right + prior * weight) / (self.tested + weight)


@dataclass(slots=True)
class _Own:
    rates: dict[str, Rate] = field(default_factory=dict)


class Acceptance:
    """Rates of all drafters of an engine. Its memory grows with the grades and with the sequences that live.

    The rate of a guess beside others for the same token is how often it is right where those before it are wrong.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int, int], Rate] = {}
        self._own: dict[Sequence, _Own] = {}

    def chances(self, name: str, proposal: Proposal, sequence: Sequence) -> list[float]:
        """For each guess of `proposal`, how likely it is that it and all before it are right."""
        own = self._own.get(sequence)
        own_rate = own.rates.get(name) if own else None
        unknown = [self.overall(name)]
        found: list[float] = []
        # by depth: how likely the way there is right, and no guess there so far, and how many these are
        reached, left, ranks = [1.0], [1.0], [0]
        for depth in proposal.places:
            del reached[depth + 1 :], left[depth + 1 :], ranks[depth + 1 :]
            rank = ranks[depth]
            if rank >= len(unknown):
                unknown.append(self.overall(name, rank))
            rate = self._rates.get(_key(name, proposal.grade, depth, rank))
            chance = rate.blend(unknown[rank], PRIOR_WEIGHT) if rate else unknown[rank]
            if own_rate and not rank:
                chance = own_rate.blend(chance, OWN_WEIGHT)
            found.append(reached[depth] * left[depth] * chance)
            left[depth] *= 1 - chance
            ranks[depth] += 1
            reached.append(found[-1])
            left.append(1.0)
            ranks.append(0)
        return found

    def learn(self, name: str, proposal: Proposal, sequence: Sequence, agreed: Many[int], *, whole: bool) -> None:
        """The guesses `agreed` of `proposal`, one behind another, were right; where that is the `whole` of it, none behind."""
        own = self._own.setdefault(sequence, _Own()).rates.setdefault(name, Rate())
        for depth, rank, is_right in _tested(proposal.places, agreed, whole):
            self._rates.setdefault(_key(name, proposal.grade, depth, rank), Rate()).add(is_right, 1, MEMORY)
            if not rank:
                own.add(is_right, 1, OWN_MEMORY)

    def overall(self, name: str, rank: int = 0) -> float:
        """The rate of a drafter's guesses for the first token, all grades together: of its first there, or of another rank."""
        first = (0, min(rank, RANKS - 1))
        rates = [rate for (other, _, *place), rate in self._rates.items() if other == name and tuple(place) == first]
        total = Rate(sum(rate.right for rate in rates), sum(rate.tested for rate in rates))
        return total.blend(PRIOR, PRIOR_WEIGHT)

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended."""
        self._own.pop(sequence, None)


def _key(name: str, grade: int, depth: int, rank: int) -> tuple[str, int, int, int]:
    return (name, grade, min(depth, PLACES - 1), min(rank, RANKS - 1))


def _tested(places: Many[int], agreed: Many[int], whole: bool) -> Iterator[tuple[int, int, bool]]:
    """Depth and rank of each guess of which it is known whether it is right."""
    at = 0
    for depth, right in enumerate((*agreed, None) if whole else agreed):
        rank = 0
        while at < len(places) and places[at] >= depth:
            is_right = at == right
            if places[at] == depth:
                yield depth, rank, is_right
                rank += 1
            at += 1
            if is_right:
                break
