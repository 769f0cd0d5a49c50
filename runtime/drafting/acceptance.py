"""How often guesses turned out right: by drafter, grade and place in the draft, and for each sequence by itself.

Told by `Speculation` after each step; asked before the next one how likely each guess is to be reached and right.
"""

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
    """Rates of all drafters of an engine. Its memory grows with the grades and with the sequences that live."""

    def __init__(self) -> None:
        self._rates: dict[tuple[str, int, int], Rate] = {}
        self._own: dict[Sequence, _Own] = {}

    def chances(self, name: str, proposal: Proposal, sequence: Sequence) -> list[float]:
        """For each guess of `proposal`, how likely it is that it and all before it are right."""
        own = self._own.get(sequence)
        own_rate = own.rates.get(name) if own else None
        reached, found, unknown = 1.0, [], self.overall(name)
        for place in range(len(proposal.tokens)):
            rate = self._rates.get((name, proposal.grade, min(place, PLACES - 1)))
            chance = rate.blend(unknown, PRIOR_WEIGHT) if rate else unknown
            if own_rate:
                chance = own_rate.blend(chance, OWN_WEIGHT)
            reached *= chance
            found.append(reached)
        return found

    def learn(self, name: str, grade: int, sequence: Sequence, agreed: int, *, refused: bool) -> None:
        """The first `agreed` guesses of a draft were right, and with `refused` the one after them was wrong."""
        for place in range(agreed + refused):
            key = (name, grade, min(place, PLACES - 1))
            self._rates.setdefault(key, Rate()).add(place < agreed, 1, MEMORY)
        own = self._own.setdefault(sequence, _Own())
        own.rates.setdefault(name, Rate()).add(agreed, agreed + refused, OWN_MEMORY)

    def overall(self, name: str) -> float:
        """The rate of a drafter's first guesses, all grades together."""
        rates = [rate for (other, _, place), rate in self._rates.items() if other == name and place == 0]
        total = Rate(sum(rate.right for rate in rates), sum(rate.tested for rate in rates))
        return total.blend(PRIOR, PRIOR_WEIGHT)

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended."""
        self._own.pop(sequence, None)
