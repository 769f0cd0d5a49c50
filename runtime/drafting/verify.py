"""Commits the rows of a slot: those that stand behind guesses count as far as their masks and the guesses themselves hold.

Called by the engine for every slot; without a draft it only passes the rows on.
"""

from collections.abc import Sequence as Seq

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.walk import renew_matcher
from branchpoint.runtime.generation import Finish, Generation
from branchpoint.runtime.masks import StepMasks
from branchpoint.runtime.plan import RowResult, Slot, StepPlan, StepResult
from branchpoint.runtime.scoring import Scoring
from branchpoint.runtime.sequence import Sequence

__all__ = ["commit_rows", "row_errors"]


def row_errors(plan: StepPlan, result: StepResult) -> dict[Sequence, BaseException]:
    """What is wrong with rows that count whatever becomes of the guesses: it is the sequence's own."""
    errors: dict[Sequence, BaseException] = {}
    for slot, rows in zip(plan.slots, result.rows, strict=True):
        for row in rows[: len(rows) - len(slot.draft)]:
            if failure := row.failure:
                errors[slot.sequence] = failure
    return errors


def commit_rows(
    member: Generation | Scoring,
    slot: Slot,
    rows: Seq[RowResult],
    masks: StepMasks,
    cache: KVCache,
    speculation: Speculation | None,
    ahead: int = 0,
) -> Finish | None:
    """Let `member` take in the rows of its slot, and `speculation` learn what its guesses were worth; what is left of them in
    `cache` is as if they had never been, but for its first `ahead` tokens, which the next step is computing.
    """
    if not slot.draft:
        return member.commit(slot, rows)
    sequence = slot.sequence
    if sequence in masks.broken:
        renew_matcher(sequence)
    masked = masks.usable.get(sequence, len(slot.draft) + 1)
    rows = rows[: len(rows) - len(slot.draft) - 1 + masked]
    forced = masks.forced.get(sequence, ())
    finish = member.commit(slot, rows, forced) if isinstance(member, Generation) else member.commit(slot, rows)
    if isinstance(member, Generation):
        if slot.depths:
            cache.close_up(sequence, slot.first_guess, member.agreed[: max(0, sequence.num_computed - slot.first_guess)])
        verified, ended = len(slot.draft), finish is not None
        drafter = speculation.learn(sequence, member.agreed, verified, finished=ended) if speculation else None
        if drafter is not None:
            member.tally.add(drafter, len(member.agreed), verified, 1 + max(slot.depths) if slot.depths else verified)
    cache.shrink(sequence, ahead)
    return finish
