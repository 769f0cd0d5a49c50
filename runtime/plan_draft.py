"""A plan in the making: the scheduler adds a slot for each sequence that it has pages for, until the budget is spent."""

from dataclasses import dataclass, replace

from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.plan import Slot
from branchpoint.runtime.sequence import Sequence

__all__ = ["PlanDraft"]


@dataclass(slots=True)
class PlanDraft:
    """Slots so far, and the tokens of the budget that are left."""

    slots: dict[Sequence, Slot]
    budget: int

    @property
    def num_tokens(self) -> int:
        """Tokens in all slots."""
        return sum(slot.count for slot in self.slots.values())

    def add(self, sequence: Sequence, count: int) -> None:
        """Let `sequence` compute its next `count` tokens at most, for which it has pages."""
        if sequence.samples and sequence.next_row < sequence.num_prompt - 1 < sequence.num_computed + count:
            # a slot that samples draws at all its rows: those of the prompt get a slot of their own
            count = max(1, sequence.num_prompt - 1 - sequence.num_computed)
        rows = sequence.rows(sequence.num_computed, count)
        draws = sequence.samples and sequence.num_computed + count == sequence.num_tokens
        self.slots[sequence] = Slot(sequence, sequence.num_computed, count, rows, sample=draws)
        self.budget -= count

    def guess(self, sequence: Sequence, proposal: Proposal) -> None:
        """Let the slot of `sequence` verify guesses behind its last token."""
        slot, count = self.slots[sequence], len(proposal.tokens)
        rows = (*slot.rows, *range(slot.start + slot.count, slot.start + slot.count + count))
        self.slots[sequence] = replace(
            slot, count=slot.count + count, rows=rows, draft=proposal.tokens, odds=proposal.odds, depths=proposal.depths
        )
        self.budget -= count

    def drop(self, sequence: Sequence) -> None:
        """`sequence` has to make room: take its slot back, if it has one."""
        slot = self.slots.pop(sequence, None)
        if slot:
            self.budget += slot.count
