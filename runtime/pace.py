"""How much of waiting prompts a step takes beside streams that run, so that none of these waits long for its next token.

Asked by the scheduler once the running streams have their place in a plan; told by it how long each step took.
"""

from branchpoint.runtime.plan import Slot, StepPlan

__all__ = ["Pace"]

LEAST = 16  # tokens of prompts in a step, however long they take: prompts must come to an end
FIRST = 64  # before any step was measured
FASTER, SLOWER = 2.0, 0.25  # by how much a step may differ from the last one at most
SHARE = 0.2  # of the latest step in what is known of steps without prompts


class Pace:
    """Keeps steps with prompts in them to about `seconds`; where steps without any take as long, to twice their time.

    `room` are the tokens of prompts that may come into the next step beside running streams.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._calm = 0.0  # seconds of a step without prompts
        self._room = float(FIRST)

    @property
    def room(self) -> int:
        """At least `LEAST`."""
        return max(LEAST, int(self._room))

    def note(self, plan: StepPlan, seconds: float) -> None:
        """`plan` took so long."""
        tokens = sum(slot.count for slot in plan.slots if slot.start < slot.sequence.num_prompt or _is_stretch(slot))
        if not tokens:
            self._calm += (SHARE if self._calm else 1.0) * (seconds - self._calm)
            return
        aim = max(self._seconds, 2 * self._calm)
        fitting = tokens * (min(FASTER, max(SLOWER, aim / seconds)) if seconds > 0 else FASTER)
        # a small step that was quick, or a large one that was slow, tells nothing against what is known
        self._room = min(self._room, fitting) if seconds > aim else max(self._room, fitting)


def _is_stretch(slot: Slot) -> bool:
    """Whether several tokens were computed that aren't guesses: again after a preemption, or since a grammar forces them."""
    return slot.first_guess - slot.start > 1
