"""What a plan holds: who computes how much, who enters, who waits and who has to go."""

from collections.abc import Iterator

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.config import Policy
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.messages import Hints
from branchpoint.runtime.plan import StepPlan
from branchpoint.runtime.policy import MAX_OVERTAKEN, make_order
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.scheduler import Scheduler
from branchpoint.runtime.sequence import Sequence, Status


def make_scheduler(
    policy: Policy = "fcfs",
    *,
    pages: int = 64,
    page_size: int = 4,
    budget: int = 32,
    most: int = 8,
    cache: bool = True,
    speculation: Speculation | None = None,
) -> Scheduler:
    kv = KVCache(pages, page_size, enabled=cache)
    order = make_order(policy, kv.cached_tokens)
    return Scheduler(kv, order, max_batch_tokens=budget, max_sequences=most, speculation=speculation)


def make(arrival: int, tokens: list[int], *, call: str = "", index: int = 0, max_output: int = 100, **hints: object) -> Sequence:
    return Sequence(
        call or f"call {arrival}",
        index,
        list(tokens),
        len(tokens),
        SamplingParams(),
        seed=0,
        max_output=max_output,
        next_row=len(tokens) - 1,
        arrival=arrival,
        hints=Hints(**hints),  # type: ignore[arg-type]
    )


def unlike(number: int, length: int) -> list[int]:
    """Tokens that share no prefix with those of another number."""
    return [1000 * (number + 1) + place for place in range(length)]


def commit(scheduler: Scheduler, plan: StepPlan | None) -> None:
    """The model has said 7 to whoever asked."""
    assert plan is not None
    scheduler.commit(plan, set())
    for slot in plan.slots:
        if slot.sample and slot.rows:
            slot.sequence.tokens.append(7)
    scheduler.check()


def counts(plan: StepPlan | None) -> dict[str, int]:
    return {} if plan is None else {slot.sequence.call_id: slot.count for slot in plan.slots}


def steps(scheduler: Scheduler, most: int = 1_000) -> Iterator[StepPlan]:
    for _ in range(most):
        plan = scheduler.plan()
        if plan is None:
            return
        yield plan
        commit(scheduler, plan)
        for sequence in [sequence for sequence in scheduler.running if not sequence.samples]:
            scheduler.remove(sequence, keep=True)
    raise AssertionError("the scheduler never came to an end")


def test_decodes_come_first_then_prefills_under_way_then_new_ones() -> None:
    scheduler = make_scheduler(budget=8)
    for arrival, length in enumerate((3, 9, 5)):
        scheduler.add(make(arrival, unlike(arrival, length)))
    plan = scheduler.plan()
    assert counts(plan) == {"call 0": 3, "call 1": 5}
    commit(scheduler, plan)
    plan = scheduler.plan()
    assert counts(plan) == {"call 0": 1, "call 1": 4, "call 2": 3}
    assert plan is not None and [slot.rows for slot in plan.slots] == [(3,), (8,), ()]
    assert [slot.sample for slot in plan.slots] == [True, True, False]


def test_the_number_of_sequences_is_bounded() -> None:
    scheduler = make_scheduler(most=2)
    for arrival in range(4):
        scheduler.add(make(arrival, unlike(arrival, 3)))
    assert len(counts(scheduler.plan())) == 2
    assert len(list(scheduler.waiting)) == 2


def test_priority_comes_first_in_every_policy() -> None:
    for policy in ("fcfs", "lpm", "program"):
        scheduler = make_scheduler(policy, most=1)
        scheduler.add(make(0, unlike(0, 3)))
        scheduler.add(make(1, unlike(1, 3), priority=1))
        assert list(counts(scheduler.plan())) == ["call 1"]


def test_the_youngest_of_the_lowest_priority_is_preempted_and_finds_its_kv_again() -> None:
    scheduler = make_scheduler(pages=11, budget=64)
    old, low, high = make(0, unlike(0, 11)), make(1, unlike(1, 11), priority=-1), make(2, unlike(2, 11))
    for sequence in (old, low, high):
        scheduler.add(sequence)
    commit(scheduler, scheduler.plan())
    assert all(sequence.status is Status.RUNNING for sequence in (old, low, high))
    commit(scheduler, scheduler.plan())
    assert [sequence.num_computed for sequence in (old, high)] == [12, 12]
    commit(scheduler, scheduler.plan())
    assert low.status is Status.WAITING and low.pages == []
    assert old.status is high.status is Status.RUNNING and low.preemptions == 1
    scheduler.remove(old, keep=False)
    commit(scheduler, scheduler.plan())
    assert low.status is Status.RUNNING and low.recomputed < 12


def test_a_chunk_has_pages_though_a_preempted_sequence_leaves_more_of_the_budget() -> None:
    for pages in range(24, 40):
        scheduler = make_scheduler(pages=pages, page_size=1, budget=4)
        for arrival in (0, 1):
            scheduler.add(make(arrival, unlike(arrival, 4), priority=-1))
        for _ in range(2):
            commit(scheduler, scheduler.plan())
        scheduler.add(make(2, unlike(2, 20)))
        for _ in range(16):
            plan = scheduler.plan()
            assert plan is not None
            assert all(len(slot.sequence.pages) >= slot.start + slot.count for slot in plan.slots)
            commit(scheduler, plan)


def test_whatever_fits_alone_ends() -> None:
    scheduler = make_scheduler(pages=8, budget=16)
    sequences = [make(arrival, unlike(arrival, 3 + 4 * arrival), max_output=9) for arrival in range(6)]
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in steps(scheduler):
        pass
    assert all(sequence.status is Status.FINISHED and sequence.num_output == 9 for sequence in sequences)


def test_calls_wait_for_a_prefix_that_is_being_computed() -> None:
    scheduler = make_scheduler(budget=8)
    stem = unlike(0, 20)
    for arrival in range(3):
        scheduler.add(make(arrival, [*stem, arrival, 1]))
    scheduler.add(make(9, unlike(9, 2)))
    computed = sum(plan.num_tokens for _, plan in zip(range(4), steps(scheduler), strict=False))
    assert computed <= 22 + 2 + 2 + 2 + 12, "the stem was computed more than once"
    assert [sequence.cached for sequence in scheduler.running][:3] == [0, 20, 20]


def test_less_than_a_page_is_not_waited_for_but_between_samples_of_one_call() -> None:
    scheduler = make_scheduler(page_size=16)
    scheduler.add(make(0, [*unlike(0, 9), 1]))
    scheduler.add(make(1, [*unlike(0, 9), 2]))
    for index in range(2):
        scheduler.add(make(2, unlike(2, 10), call="pair", index=index))
    plan = scheduler.plan()
    assert plan is not None and [slot.count for slot in plan.slots] == [10, 10, 10]


def test_without_a_cache_nobody_waits_for_a_prefix() -> None:
    scheduler = make_scheduler(cache=False)
    for index in range(3):
        scheduler.add(make(0, unlike(0, 9), index=index))
    plan = scheduler.plan()
    assert plan is not None and [slot.count for slot in plan.slots] == [9, 9, 9]


def test_rows_of_a_prompt_get_a_slot_that_does_not_sample() -> None:
    scheduler = make_scheduler()
    sequence = make(0, unlike(0, 6))
    sequence.next_row = 2
    scheduler.add(sequence)
    found = [
        (slot.start, slot.count, slot.rows, slot.sample)
        for _, plan in zip(range(2), steps(scheduler), strict=False)
        for slot in plan.slots
    ]
    assert found == [(0, 5, (2, 3, 4), False), (5, 1, (5,), True)]


def order_of(scheduler: Scheduler) -> list[str]:
    """Calls in the order of their admission, one at a time."""
    found: list[str] = []
    while True:
        plan = scheduler.plan()
        if plan is None:
            return found
        slot = plan.slots[0]
        found.append(slot.sequence.call_id)
        scheduler.commit(plan, set())
        scheduler.remove(slot.sequence, keep=True)


def test_lpm_admits_what_the_tree_holds_most_of() -> None:
    scheduler = make_scheduler("lpm", most=1)
    scheduler.add(make(0, unlike(0, 12)))
    assert order_of(scheduler) == ["call 0"]
    scheduler.add(make(1, unlike(1, 12)))
    scheduler.add(make(2, [*unlike(0, 4), 1, 2]))
    scheduler.add(make(3, [*unlike(0, 9), 1, 2]))
    assert order_of(scheduler) == ["call 3", "call 2", "call 1"]


def test_begun_programs_come_before_new_ones_and_siblings_together() -> None:
    scheduler = make_scheduler("program", most=1)
    scheduler.add(make(0, unlike(0, 3), program="old"))
    assert order_of(scheduler) == ["call 0"]
    scheduler.add(make(1, unlike(1, 3), program="new", path=(0, 0)))
    scheduler.add(make(2, unlike(2, 3), program="new", path=(1, 0)))
    scheduler.add(make(3, unlike(3, 3), program="newer"))
    scheduler.add(make(4, unlike(4, 3), program="new", path=(0, 1)))
    scheduler.add(make(5, unlike(5, 3), program="old"))
    assert order_of(scheduler) == ["call 5", "call 1", "call 4", "call 2", "call 3"]


def test_the_deepest_branches_of_a_program_come_first_so_that_what_they_hold_is_done_for() -> None:
    scheduler = make_scheduler("program", most=1)
    scheduler.add(make(0, unlike(0, 3), program="tree"))
    assert order_of(scheduler) == ["call 0"]
    for arrival, path in enumerate([(0, 0), (0, 1), (0, 0, 0, 0), (0, 0, 0, 1)], 1):
        scheduler.add(make(arrival, unlike(arrival, 3), program="tree", path=path))
    assert order_of(scheduler) == ["call 3", "call 4", "call 1", "call 2"]


def test_nobody_starves_behind_a_stream_of_begun_programs_or_cache_hits() -> None:
    for policy in ("program", "lpm"):
        scheduler = make_scheduler(policy, most=1)
        scheduler.add(make(0, unlike(0, 9), program="busy"))
        assert order_of(scheduler) == ["call 0"]
        scheduler.add(make(1, unlike(1, 9), program="cold"))
        for arrival in range(2, 4 * MAX_OVERTAKEN):
            scheduler.add(make(arrival, [*unlike(0, 8), arrival], program="busy"))
            plan = scheduler.plan()
            assert plan is not None
            scheduler.commit(plan, set())
            scheduler.remove(plan.slots[0].sequence, keep=True)
            if plan.slots[0].sequence.call_id == "call 1":
                break
        assert MAX_OVERTAKEN <= arrival <= MAX_OVERTAKEN + 3


def test_a_removed_sequence_leaves_nothing() -> None:
    scheduler = make_scheduler(most=1)
    sequences = [make(arrival, unlike(arrival, 5)) for arrival in range(2)]
    for sequence in sequences:
        scheduler.add(sequence)
    commit(scheduler, scheduler.plan())
    for sequence in sequences:
        scheduler.remove(sequence, keep=False)
    scheduler.check()
    assert scheduler.plan() is None and all(sequence.status is Status.FINISHED for sequence in sequences)
