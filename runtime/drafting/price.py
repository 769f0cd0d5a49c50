"""What guesses cost that are computed: a pass for each place in a draft, before the step that verifies them is planned.

`Speculation` asks it how deep a drafter with such a price is to guess, and counts what was spent. Lookups have none.
"""

from collections.abc import Sequence as Many
from itertools import zip_longest

from branchpoint.runtime.drafting.cost import StepCost
from branchpoint.runtime.drafting.pause import Pause

__all__ = ["LEAST_GAIN", "Price"]

LEAST_GAIN = 0.05
"""Of a step's rate, below which no guess is made: so well, at best, acceptance and costs are known."""


class Price:
    """The price of one drafter's guesses, whose passes cost what `passes` says; `steps` tells what the model's steps cost."""

    def __init__(self, passes: StepCost, steps: StepCost) -> None:
        self._passes = passes
        self._steps = steps
        self._pause = Pause()

    def depth(self, chances: Many[Many[float]], rows: int, tokens: int) -> int:
        """How many guesses each of some sequences should get, of these chances, in a step of `tokens` tokens and `rows` rows.

        None in the pauses where none pay; between them one, to see whether that is still so.
        """
        if self.rests(rows):
            return 0
        alone, usual = self._steps.estimate(rows), self._steps.estimate(tokens)
        best, best_rate, gained = 0, (1 + LEAST_GAIN) * rows / alone, float(rows)
        for depth, place in enumerate(zip_longest(*chances, fillvalue=0.0), 1):
            gained += sum(place)
            verified = self._steps.estimate(tokens + depth * len(chances)) - usual
            rate = gained / (alone + verified + self.seconds(len(chances), depth))
            if rate > best_rate:
                best, best_rate = depth, rate
        if best:
            self._pause = Pause()
            return best
        self._pause.extend(rows)
        return 1

    def rests(self, rows: int) -> bool:
        """Whether a step of so many rows, the next one, is in a pause."""
        return self._pause.skips(rows)

    def seconds(self, sequences: int, depth: int) -> float:
        """What so many guesses for each of so many sequences take."""
        return depth * self._passes.estimate(sequences)
