"""Commits the rows of a slot: those that stand behind guesses count as far as their masks and the guesses themselves hold.

Called by the engine for every slot; without a draft it only passes the rows on.
"""

from collections.abc import Sequence as Seq

from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.drafting.walk import renew_matcher
from branchpoint.runtime.errors import RuntimeFailure
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
            if row.error:
                errors[slot.sequence] = RuntimeFailure(row.error)
    return errors


def commit_rows(
    member: Generation | Scoring, slot: Slot, rows: Seq[RowResult], masks: StepMasks, speculation: Speculation | None
) -> Finish | None:
    """Let `member` take in the rows of its slot, and `speculation` learn what its guesses were worth."""
    if not slot.draft:
        return member.commit(slot, rows)
    sequence = slot.sequence
    if sequence in masks.broken:
        renew_matcher(sequence)
    masked = masks.usable.get(sequence, len(slot.draft) + 1)
    finish = member.commit(slot, rows[: len(rows) - len(slot.draft) - 1 + masked])
    if speculation and isinstance(member, Generation):
        drafter = speculation.learn(sequence, member.agreed, len(slot.draft), finished=finish is not None)
        if drafter is not None:
            member.tally.add(drafter, member.agreed, len(slot.draft))
    return finish
