"""Sequences whose masks are slow take turns beside others: no step waits for all of them, and each comes to its own."""

import time
from collections import Counter

import pytest

from branchpoint.constrained.grammar import MaskRow, Residue
from branchpoint.runtime.mask_turns import SLOW, in_turn, note_turns
from branchpoint.runtime.masks import MaskFiller
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.drafting.guessing import Parrot, all_of
from tests.runtime.scripted import ListMatcher
from tests.runtime.test_scheduler import commit, counts, make, make_scheduler, unlike


def decoding(*costs: float) -> list[Sequence]:
    sequences = [Sequence("call", index, [1, 2], 2, SamplingParams(), seed=0) for index in range(len(costs))]
    for sequence, cost in zip(sequences, costs, strict=True):
        sequence.note_mask(cost)
    return sequences


def test_a_step_waits_for_no_more_than_its_allowance_and_every_slow_sequence_gets_its_turn() -> None:
    sequences = decoding(0.0, *[0.004] * 5, 0.0001, 0.015)
    taken = dict.fromkeys(sequences, 0)
    for _ in range(40):
        step = in_turn(sequences)
        slow = [sequence.mask_cost for sequence in step if sequence.mask_cost >= SLOW]
        assert len(slow) == 1 or sum(slow) <= 0.010
        assert step == [sequence for sequence in sequences if sequence in step]
        assert in_turn(sequences) == step, "a step that wasn't made was somebody's turn"
        note_turns(sequences, step)
        for sequence in step:
            taken[sequence] += 1
    assert [taken[sequences[0]], taken[sequences[6]]] == [40, 40]
    assert min(taken.values()) >= 10


@pytest.mark.parametrize("costs", [(0.05, 0.0, 0.0), (0.05, 0.05), (0.0019, 0.0019, 0.0)])
def test_where_nobody_would_be_spared_a_wait_all_go_on(costs: tuple[float, ...]) -> None:
    sequences = decoding(*costs)
    assert in_turn(sequences) == sequences


def test_what_was_slow_once_is_slow_for_some_tokens_more() -> None:
    (sequence,) = decoding(0.02)
    tokens = 0
    while sequence.mask_cost >= SLOW:
        sequence.note_mask(0.0001)
        tokens += 1
    assert 10 < tokens < 40


def test_the_scheduler_leaves_out_who_has_to_wait() -> None:
    scheduler = make_scheduler()
    sequences = [make(number, unlike(number, 8)) for number in range(4)]
    for sequence in sequences:
        scheduler.add(sequence)
    commit(scheduler, scheduler.plan())
    for sequence in sequences[1:]:
        sequence.note_mask(0.008)
    seen: dict[str, int] = {}
    for _ in range(3):
        plan = scheduler.plan()
        for call in counts(plan):
            seen[call] = seen.get(call, 0) + 1
        assert len(counts(plan)) == 2
        commit(scheduler, plan)
        scheduler.check()
    assert sorted(seen.values()) == [1, 1, 1, 3]


def test_a_plan_that_comes_to_nothing_is_nobodys_turn() -> None:
    scheduler = make_scheduler(speculation=all_of(Parrot()))
    sequences = [make(number, unlike(number, 8)) for number in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    commit(scheduler, scheduler.plan())
    for sequence in sequences[1:]:
        sequence.note_mask(0.02)
    seen: Counter[str] = Counter()
    for _ in range(4):
        plan = scheduler.plan()
        seen.update(counts(plan).keys())
        assert scheduler.plan(plan) is None, "the drafter is waited for, which has nothing to say"
        commit(scheduler, plan)
    assert sorted(seen.values()) == [2, 2, 4]


def test_a_fill_notes_what_it_costs() -> None:
    class Slow(ListMatcher):
        def fill_loosely(self, row: MaskRow) -> Residue | None:
            until = time.thread_time() + 2 * SLOW
            while time.thread_time() < until:
                pass
            return super().fill_loosely(row)

    filler = MaskFiller(70)
    sequence = Sequence("call", 0, [1, 2], 2, SamplingParams(), seed=0, matcher=Slow((frozenset({5}),)))
    filler.start(StepPlan((Slot(sequence, 0, 2, (1,)),))).wait()
    filler.close()
    assert sequence.mask_cost >= SLOW
