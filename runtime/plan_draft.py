"""A plan in the making: the scheduler adds a slot for each sequence that it has pages for, until the budget is spent.

Behind a step that is under way a sequence goes on where that will leave it. What it draws there is fed to its slot on the device,
as guesses are that are being drawn; chunks of prompts, and tokens that a grammar forced since, are known.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain

from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.lora.adapter import Adapter
from branchpoint.runtime.plan import Copy, GuessesUnderWay, Slot, StepPlan
from branchpoint.runtime.sequence import Sequence

__all__ = ["PlanDraft"]

FEW = 7  # tokens of a step for which weights have the same form as for one


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sequence stands once the step under way has run: `behind` tokens have KV. What it `draws` is in that row, or -1."""

    behind: int
    draws: int


class PlanDraft:
    """Slots so far, and the tokens of the `budget` that are left. Behind a step that is `under_way` what that computes of `void`
    sequences doesn't count; where a slot can't be told without its result, the draft `must_wait`. It is `early` where what was
    drawn last isn't taken in yet.

    With `replays` a prompt's last token is computed by itself, as it is for whoever finds the others in the cache: both then say
    the same, where steps round by their size.
    """

    def __init__(
        self,
        budget: int,
        *,
        replays: bool = False,
        under_way: StepPlan | None = None,
        void: Collection[Sequence] = (),
        early: bool = False,
    ) -> None:
        self.budget = budget
        self.slots: dict[Sequence, Slot] = {}
        self.is_ahead = under_way is not None
        self.is_early = early
        self.must_wait = False
        self._replays = replays
        self._sources: dict[Sequence, tuple[int, ...]] = {}
        self._guesses: GuessesUnderWay | None = None
        self._places: dict[Sequence, _Place] = {}
        row = -1
        for slot in under_way.slots if under_way else ():
            row += len(slot.rows)
            behind = slot.start + slot.count
            draws = slot.sample and slot.rows[-1:] == (behind - 1,)
            if slot.sequence not in void:
                self._places[slot.sequence] = _Place(behind, row if draws else -1)

    @property
    def num_tokens(self) -> int:
        """Tokens in all slots."""
        return sum(slot.count for slot in self.slots.values())

    def start(self, sequence: Sequence) -> int:
        """How many tokens of `sequence` have KV where its slot begins."""
        place = self._places.get(sequence)
        return sequence.num_computed if place is None else place.behind

    def end(self, sequence: Sequence) -> int:
        """How many tokens of `sequence` have KV where its slot, which draws, ends."""
        slot = self.slots[sequence]
        return slot.start + slot.count

    def in_prefill(self, sequence: Sequence) -> bool:
        """Whether tokens of its prompt, or others that it had before a preemption, are still without KV then."""
        return self.start(sequence) < max(sequence.num_prompt, sequence.peak)

    def left(self, sequence: Sequence) -> int:
        """Tokens that `sequence` could compute now. None where it ends with the step under way, as far as is known."""
        left = sequence.target - self.start(sequence)
        return left if left > 0 else int(self._is_fed(sequence))

    def add(self, sequence: Sequence, count: int) -> None:
        """Let `sequence` compute at most `count` tokens of what is `left`, for which it has pages."""
        start = self.start(sequence)
        if start == sequence.num_tokens:
            self._sources[sequence] = (self._places[sequence].draws,)
            self._put(Slot(sequence, start, 1, (start,)))
            return
        if sequence.samples and sequence.next_row < sequence.num_prompt - 1 < start + count:
            # a slot that samples draws at all its rows: those of the prompt get a slot of their own
            count = max(1, sequence.num_prompt - 1 - start)
        is_prompt = start + count == sequence.num_tokens == sequence.num_prompt
        if self._replays and is_prompt and sequence.samples and count > FEW:
            count -= 1
        draws = sequence.samples and start + count == sequence.num_tokens
        self._put(Slot(sequence, start, count, sequence.rows(start, count), sample=draws))

    def guess(self, sequence: Sequence, proposal: Proposal) -> None:
        """Let the slot of `sequence` verify guesses behind its last token."""
        slot, count = self.slots[sequence], len(proposal.tokens)
        rows = (*slot.rows, *range(slot.start + slot.count, slot.start + slot.count + count))
        self.slots[sequence] = replace(
            slot, count=slot.count + count, rows=rows, draft=proposal.tokens, odds=proposal.odds, depths=proposal.depths
        )
        self.budget -= count
        if proposal.under_way is not None:
            self._sources[sequence], self._guesses = proposal.sources, proposal.under_way

    def drop(self, sequence: Sequence) -> None:
        """`sequence` has to make room: take its slot back, if it has one."""
        slot = self.slots.pop(sequence, None)
        if slot:
            self.budget += slot.count

    def step(self, copies: tuple[Copy, ...]) -> StepPlan:
        """The plan, slots of one adapter next to each other: its matrices are then applied once for all of them."""
        groups: dict[Adapter | None, list[Slot]] = {}
        for slot in self.slots.values():
            groups.setdefault(slot.sequence.adapter, []).append(slot)
        slots = tuple(chain.from_iterable(groups.values()))
        is_fed = self.is_ahead or self._guesses is not None
        sources = tuple(self._sources.get(slot.sequence, ()) for slot in slots) if is_fed else ()
        return StepPlan(slots, copies, sources, self._guesses)

    def _is_fed(self, sequence: Sequence) -> bool:
        """Whether the step under way draws a token behind which another one is to be drawn."""
        place = self._places.get(sequence)
        return place is not None and place.draws >= 0 and place.behind + 1 < sequence.num_prompt + sequence.max_output

    def _put(self, slot: Slot) -> None:
        self.slots[slot.sequence] = slot
        self.budget -= slot.count
