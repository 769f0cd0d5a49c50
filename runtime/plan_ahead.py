"""The slots of the step behind one that is under way, as far as they follow without its result. The scheduler asks for them.

What a sequence draws in the step under way is fed to the next one on the device; chunks of prompts, and tokens that a grammar
forced since, are known.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.plan_draft import PlanDraft
from branchpoint.runtime.sequence import Sequence

__all__ = ["AheadDraft"]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sequence stands once the step under way has run: `behind` tokens have KV. What it `draws` is in that row, or -1."""

    behind: int
    draws: int = -1


class AheadDraft:
    """A plan in the making behind `under_way`, of at most `budget` tokens. `sources` are those of its slots so far."""

    def __init__(self, under_way: StepPlan, budget: int) -> None:
        self.draft = PlanDraft({}, budget)
        self.sources: list[int] = []
        self._places: dict[Sequence, _Place] = {}
        row = -1
        for slot in under_way.slots:
            row += len(slot.rows)
            behind = slot.start + slot.count
            draws = slot.sample and slot.rows[-1:] == (behind - 1,)
            self._places[slot.sequence] = _Place(behind, row if draws else -1)

    def in_prefill(self, sequence: Sequence) -> bool:
        """Whether tokens of its prompt, or others that it had before a preemption, are still without KV then."""
        return self._place(sequence).behind < max(sequence.num_prompt, sequence.peak)

    def add_all(self, sequences: Iterable[Sequence]) -> None:
        """Let them go on, as far as the budget reaches. Those that end with the step under way, as far as is known, don't."""
        for sequence in sequences:
            if self.draft.budget:
                self._add(sequence, self._place(sequence))

    def _place(self, sequence: Sequence) -> _Place:
        return self._places.get(sequence) or _Place(sequence.num_computed)

    def _add(self, sequence: Sequence, place: _Place) -> None:
        left = sequence.target - place.behind
        if left > 0:
            self.draft.add(sequence, min(left, self.draft.budget), place.behind)
            self.sources.append(-1)
        elif place.draws >= 0 and place.behind + 1 < sequence.num_prompt + sequence.max_output:
            self.draft.put(Slot(sequence, place.behind, 1, (place.behind,)))
            self.sources.append(place.draws)
