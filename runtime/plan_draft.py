"""A plan in the making: the scheduler adds a slot for each sequence that it has pages for, until the budget is spent."""

from dataclasses import dataclass, replace
from itertools import chain

from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.lora.adapter import Adapter
from branchpoint.runtime.plan import Slot
from branchpoint.runtime.sequence import Sequence

__all__ = ["PlanDraft"]

FEW = 7  # tokens of a step for which weights have the same form as for one


@dataclass(slots=True)
class PlanDraft:
    """Slots so far, and the tokens of the budget that are left. With `replays` a prompt's last token is computed by itself, as it
    is for whoever finds the others in the cache: both then say the same, where steps round by their size.
    """

    slots: dict[Sequence, Slot]
    budget: int
    replays: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens in all slots."""
        return sum(slot.count for slot in self.slots.values())

    @property
    def ordered(self) -> tuple[Slot, ...]:
        """The slots, those of one adapter next to each other: its matrices are then applied once for all of them."""
        groups: dict[Adapter | None, list[Slot]] = {}
        for slot in self.slots.values():
            groups.setdefault(slot.sequence.adapter, []).append(slot)
        return tuple(chain.from_iterable(groups.values()))

    def add(self, sequence: Sequence, count: int, start: int) -> None:
        """Let `sequence` compute at most `count` tokens from `start` on, where its KV will end, and for which it has pages."""
        if sequence.samples and sequence.next_row < sequence.num_prompt - 1 < start + count:
            # a slot that samples draws at all its rows: those of the prompt get a slot of their own
            count = max(1, sequence.num_prompt - 1 - start)
        is_prompt = start + count == sequence.num_tokens == sequence.num_prompt
        if self.replays and is_prompt and sequence.samples and count > FEW:
            count -= 1
        draws = sequence.samples and start + count == sequence.num_tokens
        self.put(Slot(sequence, start, count, sequence.rows(start, count), sample=draws))

    def put(self, slot: Slot) -> None:
        """Take in a slot of a sequence that has none."""
        self.slots[slot.sequence] = slot
        self.budget -= slot.count

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
