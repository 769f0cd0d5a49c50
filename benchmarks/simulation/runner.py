"""The model of a simulation: takes its time by the cost model and answers with tokens that depend on seed and position only.

So every policy is given the same programs, token for token, whatever is batched, cached or preempted.
"""

from benchmarks.simulation.clock import SimulatedClock
from benchmarks.simulation.cost import CostModel
from branchpoint.runtime.plan import MaskSource, RowResult, Slot, StepPlan, StepResult

__all__ = ["VOCABULARY", "SimulatedRunner", "token_at"]

VOCABULARY = 32_000
EOS = VOCABULARY - 1


def token_at(seed: int, position: int) -> int:
    """The token that a call of this seed has at `position`; never the end token."""
    return (seed * 40_503 + position * 2_654_435_761) % EOS


class SimulatedRunner:
    """A `Runner` over `num_pages` pages without contents. `seconds` sums what its steps took."""

    def __init__(self, num_pages: int, page_size: int, cost: CostModel, clock: SimulatedClock) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.seconds = 0.0
        self._cost = cost
        self._clock = clock
        self._drawn = [(RowResult(token),) for token in range(VOCABULARY)]

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        """Let the plan's time pass, and give its rows."""
        seconds = self._cost.seconds(plan)
        self._clock.advance(seconds)
        self.seconds += seconds
        masks()
        return StepResult(tuple([self._rows(slot) for slot in plan.slots]), seconds)

    def _rows(self, slot: Slot) -> tuple[RowResult, ...]:
        if not slot.rows:
            return ()
        if slot.sample and len(slot.rows) == 1:
            return self._drawn[token_at(slot.sequence.seed, slot.rows[0] + 1)]
        return tuple([self._row(slot, row) for row in slot.rows])

    def _row(self, slot: Slot, row: int) -> RowResult:
        asked = slot.sequence.asked.get(row, ())
        return RowResult(token_at(slot.sequence.seed, row + 1) if slot.sample else None, known=-1.0, asked=(-1.0,) * len(asked))
