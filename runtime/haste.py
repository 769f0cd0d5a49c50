"""Whether a step is launched before what the last one drew is taken in: it hides that work, and learns late what it comes to.

Asked by the engine for each step that didn't run ahead; told what taking in took of a step, and how many rows were in vain.
"""

from collections.abc import Callable

from branchpoint.runtime.flight import Flight, runs_ahead
from branchpoint.runtime.foresight import Foresight
from branchpoint.runtime.masks import StepMasks
from branchpoint.runtime.plan import Runner, StepPlan, StepResult
from branchpoint.runtime.sequence import Sequence

__all__ = ["Haste"]

LATEST = 0.1  # of the latest step in what is usual
FORGETS = 0.99  # what is left of the loss each time that it isn't looked at: so it is tried again


class Haste:
    """For steps of `runner`; `ends` are tokens that end an output, and `forget` is for `Foresight`.

    A sequence behind whose token something is forced loses a row where that wasn't guessed: with few sequences that is more than
    the time that taking in their tokens takes.
    """

    def __init__(
        self, runner: Runner, ends: frozenset[int] = frozenset(), forget: Callable[[Sequence], None] = lambda _: None
    ) -> None:
        self._runs_ahead = runs_ahead(runner)
        self._ends = ends
        self._forget = forget
        self._taken = 0.0  # time of taking in, of a step's
        self._lost = 0.0  # rows in vain, of all that draw

    def pays(self, plan: StepPlan) -> bool:
        """Whether the step behind `plan` should be. Not behind trees of guesses, whose KV is moved when they are taken in."""
        return self._runs_ahead and self._lost <= self._taken and not any(slot.depths for slot in plan.slots)

    def foresee(self, plan: StepPlan, result: StepResult, masks: StepMasks) -> Foresight:
        """Within it the step behind `plan` can be planned and launched."""
        return Foresight(plan, result, masks, self._ends, self._forget)

    def note(self, taken: float, step: float, ahead: Flight | None) -> None:
        """Tokens were taken in for `taken` of the seconds that a `step` took, while `ahead` was under way."""
        if not self._runs_ahead or step <= 0:
            return
        self._taken += LATEST * (min(1.0, taken / step) - self._taken)
        drawing = [slot for slot in ahead.plan.slots if slot.sample] if ahead and ahead.foreseen else []
        if not drawing:
            self._lost *= FORGETS
            return
        lost = 0
        for slot in drawing:
            since = tuple(slot.sequence.tokens[slot.first_guess :])
            lost += bool(since and slot.depths) or since != slot.draft[: len(since)]
        self._lost += LATEST * (lost / len(drawing) - self._lost)
