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

    Of several guesses for the same token each has a rate of its own, and none of them that of a guess which is alone: where
    texts have parted before, what is likely elsewhere isn't.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int, int], Rate] = {}
        self._own: dict[Sequence, _Own] = {}

    def chances(self, name: str, proposal: Proposal, sequence: Sequence) -> list[float]:
        """For each guess of `proposal`, how likely it is that it and all before it are right."""
        own = self._own.get(sequence)
        own_rate = own.rates.get(name) if own else None
        reached, unknown = [1.0], dict[int, float]()  # by depth and by rank
        found: list[float] = []
        for depth, rank in zip(proposal.places, proposal.ranks, strict=True):
            if rank not in unknown:
                unknown[rank] = self.overall(name, rank)
            rate = self._rates.get(_key(name, proposal.grade, depth, rank))
            chance = rate.blend(unknown[rank], PRIOR_WEIGHT) if rate else unknown[rank]
            if own_rate and not rank:
                chance = own_rate.blend(chance, OWN_WEIGHT)
            found.append(reached[depth] * chance)
            reached[depth + 1 :] = [found[-1]]
        return found

    def learn(
        self, name: str, proposal: Proposal, ranks: Many[int], sequence: Sequence, agreed: Many[int], *, whole: bool
    ) -> None:
        """The guesses `agreed` of `proposal`, one behind another, were right; where that is the `whole` of it, none behind.

        The `ranks` are those that the guesses had before some of them were dropped.
        """
        own = self._own.setdefault(sequence, _Own()).rates.setdefault(name, Rate())
        for number, depth, is_right in _tested(proposal.places, agreed, whole):
            self._rates.setdefault(_key(name, proposal.grade, depth, ranks[number]), Rate()).add(is_right, 1, MEMORY)
            if not ranks[number]:
                own.add(is_right, 1, OWN_MEMORY)

    def overall(self, name: str, rank: int = 0) -> float:
        """The rate of a drafter's guesses for the first token, all grades together: of those alone, or of one rank."""
        first = (0, min(rank, RANKS - 1))
        rates = [rate for (other, _, *place), rate in self._rates.items() if other == name and tuple(place) == first]
        total = Rate(sum(rate.right for rate in rates), sum(rate.tested for rate in rates))
        return total.blend(PRIOR / max(1, rank), PRIOR_WEIGHT)

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended."""
        self._own.pop(sequence, None)


def _key(name: str, grade: int, depth: int, rank: int) -> tuple[str, int, int, int]:
    return (name, grade, min(depth, PLACES - 1), min(rank, RANKS - 1))


def _tested(places: Many[int], agreed: Many[int], whole: bool) -> Iterator[tuple[int, int, bool]]:
    """Number and depth of each guess of which it is known whether it is right: one that stands behind right ones only."""
    behind = -1
    for depth, right in enumerate((*agreed, None) if whole else agreed):
        for number in range(behind + 1, len(places)):
            if places[number] < depth:
                break
            if places[number] == depth:
                yield number, depth, number == right
        behind = len(places) if right is None else right
