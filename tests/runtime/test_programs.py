"""What programs tell the cache: whose KV is needed again, whose never, and what comes back from host memory."""

import random

from branchpoint.radix import CopyCost, HostTier
from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.messages import Call, Completed, Hints
from branchpoint.runtime.policy import make_order
from branchpoint.runtime.room import HELD_PLANS
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.scheduler import Scheduler
from branchpoint.runtime.sequence import Status
from tests.runtime.scripted import ScriptedRunner, make_engine, run
from tests.runtime.test_scheduler import commit, make, unlike


def scheduler_of(pages: int) -> Scheduler:
    cache = KVCache(pages, 4)
    order = make_order("program", cache.cached_tokens)
    return Scheduler(cache, order, max_batch_tokens=64, max_sequences=8)


def compute(scheduler: Scheduler, arrival: int, tokens: list[int], **hints: object) -> None:
    """A call that is admitted, computed, and ends."""
    sequence = make(arrival, tokens, max_output=1, **hints)
    scheduler.add(sequence)
    commit(scheduler, scheduler.plan())
    scheduler.remove(sequence, keep=True)


def cached(scheduler: Scheduler, tokens: list[int]) -> int:
    return scheduler.cache.cached_tokens(make(99, [*tokens, 5]))


def test_what_an_ended_program_had_goes_before_what_is_older() -> None:
    scheduler = scheduler_of(12)
    paused, ended = unlike(1, 16), unlike(2, 16)
    compute(scheduler, 1, paused, program="paused")
    compute(scheduler, 2, ended, program="ended")
    scheduler.end_program("ended")
    compute(scheduler, 3, unlike(3, 24), program="new")
    assert cached(scheduler, paused) == 16
    assert cached(scheduler, ended) < 16


def test_a_call_tells_of_programs_that_ended_before_it() -> None:
    scheduler = scheduler_of(12)
    paused, ended = unlike(1, 16), unlike(2, 16)
    compute(scheduler, 1, paused, program="paused")
    compute(scheduler, 2, ended, program="ended")
    compute(scheduler, 3, unlike(3, 24), program="new", ended=("ended", "never seen"))
    assert cached(scheduler, paused) == 16
    assert cached(scheduler, ended) < 16


def test_what_will_be_used_again_outlives_what_is_younger() -> None:
    scheduler = scheduler_of(12)
    returning, other = unlike(1, 16), unlike(2, 16)
    compute(scheduler, 1, returning, program="agent", returns=True, return_seconds=60.0)
    compute(scheduler, 2, other)
    compute(scheduler, 3, unlike(3, 24))
    assert cached(scheduler, returning) == 16
    assert cached(scheduler, other) < 16


def test_a_turn_that_was_taken_back_goes_first() -> None:
    scheduler = scheduler_of(16)
    start, other = unlike(1, 8), unlike(2, 16)
    compute(scheduler, 1, [*start, *unlike(4, 12)], program="agent")
    compute(scheduler, 2, other)
    compute(scheduler, 3, [*start, *unlike(5, 12)], program="agent")
    compute(scheduler, 4, unlike(3, 24))
    assert cached(scheduler, [*start, *unlike(5, 12)]) == 20
    assert cached(scheduler, [*start, *unlike(4, 12)]) < 20


def test_programs_that_never_end_are_forgotten() -> None:
    scheduler = scheduler_of(12)
    for arrival in range(40):
        compute(scheduler, arrival, unlike(arrival, 16), program=f"lost {arrival}")
    remembered = scheduler._programs._programs
    assert len(remembered) <= 4 * 48 // 16
    scheduler.end_program("lost 0")
    scheduler.check()


def test_of_a_program_that_goes_on_for_days_the_latest_branches_are_remembered() -> None:
    scheduler = scheduler_of(12)
    for arrival in range(200):
        compute(scheduler, arrival, unlike(arrival, 16), program="agent", path=(arrival, 0), siblings=2)
    (program,) = scheduler._programs._programs.values()
    keys = [key for branch in program.branches.values() for key in branch.keys]
    assert sum(map(len, [*keys, *(fork.key for fork in program.forks.values())])) <= 4 * 48
    assert (199, 0) in program.branches and len(program.forks) <= 4 * 48
    scheduler.end_program("agent")
    assert scheduler._programs._num_tokens == 0


def test_forks_of_which_nothing_is_kept_are_forgotten_too() -> None:
    cache = KVCache(12, 4, enabled=False)
    order = make_order("program", cache.cached_tokens)
    scheduler = Scheduler(cache, order, max_batch_tokens=64, max_sequences=8)
    for arrival in range(300):
        compute(scheduler, arrival, unlike(arrival, 8), program=f"lost {arrival}", path=(0, 0), siblings=2)
    assert len(scheduler._programs._programs) <= 4 * 48


def test_new_programs_that_find_more_in_the_tree_come_first() -> None:
    scheduler = scheduler_of(64)
    shared = unlike(1, 16)
    compute(scheduler, 1, shared, program="first")
    colder, warmer = make(2, unlike(2, 20), program="colder"), make(3, [*shared, 5, 6, 7], program="warmer")
    for sequence in (colder, warmer):
        scheduler.add(sequence)
    plan = scheduler.plan()
    assert plan is not None and [slot.sequence for slot in plan.slots] == [warmer, colder]


def conversations(seed: int) -> list[Call]:
    draw = random.Random(seed)
    prompts = [[draw.randrange(30) for _ in range(draw.randrange(10, 40))] for _ in range(4)]
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return [
        Call(f"{turn}.{number}", (*prompt, *[turn] * turn), sampling, hints=Hints(program=str(number), returns=True))
        for turn in range(5)
        for number, prompt in enumerate(prompts)
    ]


def test_host_memory_changes_nothing_but_what_is_computed() -> None:
    outputs, computed = [], []
    for host_pages in (0, 64):
        runner = ScriptedRunner(num_pages=14, page_size=4)
        engine = make_engine(runner, host_pages=host_pages)
        tokens = []
        for call in conversations(1):  # one after another: each finds its last turn evicted from the small pool
            got = run(engine, call)[call.id]
            assert isinstance(got.end, Completed)
            tokens.append(got.tokens)
            for index in range(3):
                run(engine, Call(f"{call.id} noise {index}", (37, *[index] * 20), SamplingParams(temperature=0.0, max_tokens=4)))
        outputs.append(tokens)
        computed.append(engine.stats().computed_tokens)
        engine.close()
    assert outputs[0] == outputs[1]
    assert computed[1] < 0.8 * computed[0]


def test_host_memory_is_left_alone_where_computing_is_faster() -> None:
    host = HostTier(16, 4)
    cache = KVCache(8, 4, host=host, copy_cost=CopyCost(fixed=10.0, page=1.0, token=1.0))
    scheduler = Scheduler(cache, make_order("fcfs", cache.cached_tokens), max_batch_tokens=64, max_sequences=8)
    compute(scheduler, 1, unlike(1, 8))
    compute(scheduler, 2, unlike(2, 28))
    assert cache.tree.num_host_pages
    sequence = make(3, [*unlike(1, 8), 5])
    scheduler.add(sequence)
    plan = scheduler.plan()
    assert plan is not None and plan.slots[0].start == 4  # the page that is still on the device, and no more


def paused(*, pages: int = 12) -> Scheduler:
    """A scheduler in whose pool a program of 16 tokens waits for a tool, while another sequence runs."""
    scheduler = scheduler_of(pages)
    compute(scheduler, 1, unlike(1, 16), program="old", returns=True, return_seconds=60.0)
    scheduler.add(make(2, unlike(2, 3), program="running"))
    commit(scheduler, scheduler.plan())
    return scheduler


def test_a_new_program_waits_where_it_would_evict_what_a_begun_one_comes_back_for() -> None:
    scheduler = paused()
    new = make(3, unlike(3, 24), program="new")
    scheduler.add(new)
    commit(scheduler, scheduler.plan())
    assert new.status is Status.WAITING and cached(scheduler, unlike(1, 16)) == 16
    back = make(4, [*unlike(1, 16), 5], program="old", max_output=1)
    scheduler.add(back)
    commit(scheduler, scheduler.plan())
    assert back.cached == 16 and new.status is Status.WAITING
    scheduler.remove(back, keep=True)
    scheduler.end_program("old")
    commit(scheduler, scheduler.plan())
    assert new.status is Status.RUNNING


def test_a_new_program_that_fits_beside_what_is_awaited_does_not_wait() -> None:
    scheduler = paused()
    scheduler.add(make(3, unlike(3, 15), program="new"))
    commit(scheduler, scheduler.plan())
    assert len(list(scheduler.running)) == 2


def test_nobody_is_held_back_while_nothing_runs() -> None:
    scheduler = paused()
    scheduler.remove(next(iter(scheduler.running)), keep=False)
    scheduler.add(make(3, unlike(3, 40), program="new"))
    commit(scheduler, scheduler.plan())
    assert len(list(scheduler.running)) == 1


def test_nobody_is_held_back_for_ever_by_what_never_comes_back() -> None:
    scheduler = paused(pages=60)
    for arrival in (3, 4):
        compute(scheduler, arrival, unlike(arrival, 60), program=f"lost {arrival}", returns=True, return_seconds=1_000.0)
    new = make(5, unlike(5, 100), program="new")
    scheduler.add(new)
    plans = 0
    while new.status is Status.WAITING:
        commit(scheduler, scheduler.plan())
        plans += 1
    assert plans == HELD_PLANS + 1


def test_a_program_is_not_held_back_for_a_younger_one() -> None:
    scheduler = paused()
    compute(scheduler, 3, unlike(3, 12), program="younger", returns=True, return_seconds=60.0)
    going_on = make(4, [*unlike(1, 16), *unlike(4, 17)], program="old")
    scheduler.add(going_on)
    commit(scheduler, scheduler.plan())
    assert going_on.status is Status.RUNNING and going_on.cached == 16
    assert cached(scheduler, unlike(3, 12)) < 12


def test_the_youngest_program_is_preempted_though_its_call_came_first() -> None:
    scheduler = scheduler_of(9)
    compute(scheduler, 0, unlike(0, 3), program="old")
    first, second = make(1, unlike(1, 11), program="young"), make(2, unlike(2, 11), program="old")
    for sequence in (first, second):
        scheduler.add(sequence)
    for _ in range(8):
        commit(scheduler, scheduler.plan())
    assert first.preemptions == 1 and second.preemptions == 0


def fork_of(scheduler: Scheduler, *, siblings: int) -> None:
    """The first of a fork runs, on 16 tokens that are cached, and 4 of its own; nothing tells of the others."""
    compute(scheduler, 1, unlike(1, 16), program="old")
    first = make(2, [*unlike(1, 16), *unlike(2, 3)], program="old", path=(0, 0), siblings=siblings)
    scheduler.add(first)
    commit(scheduler, scheduler.plan())


def awaited(scheduler: Scheduler) -> int:
    """Pages that nobody who comes now may take."""
    return scheduler.cache.tree.num_awaited((0, -1_000))


def test_pages_that_a_running_sequence_holds_are_not_kept_free_of_others_once_more() -> None:
    scheduler = scheduler_of(16)
    fork_of(scheduler, siblings=3)
    scheduler.add(make(3, unlike(3, 31), program="new"))
    commit(scheduler, scheduler.plan())
    assert len(list(scheduler.running)) == 2, "11 pages are free, 1 will be needed, and 8 are asked for"


def test_what_a_fork_shares_is_awaited_once_no_sibling_runs() -> None:
    scheduler = scheduler_of(16)
    fork_of(scheduler, siblings=3)
    assert awaited(scheduler) == 0
    scheduler.remove(next(iter(scheduler.running)), keep=True)
    assert awaited(scheduler) == 4
    for arrival, left in ((3, 4), (4, 0)):
        compute(scheduler, arrival, [*unlike(1, 16), *unlike(arrival, 3)], program="old", path=(0, arrival), siblings=3)
        assert awaited(scheduler) == left


def test_nobody_waits_for_siblings_or_returns_of_a_program_that_has_ended() -> None:
    scheduler = scheduler_of(32)
    fork_of(scheduler, siblings=3)
    scheduler.remove(next(iter(scheduler.running)), keep=True)
    compute(scheduler, 3, [*unlike(1, 16), 5], program="old", path=(), returns=True, return_seconds=900.0)
    assert awaited(scheduler) > 4
    scheduler.end_program("old")
    assert awaited(scheduler) == 0


def test_the_end_of_a_program_leaves_what_another_awaits() -> None:
    scheduler = scheduler_of(32)
    for arrival, program in ((1, "first"), (2, "second")):
        compute(scheduler, arrival, unlike(1, 16), program=program, returns=True, return_seconds=900.0)
    scheduler.end_program("first")
    assert awaited(scheduler) == 4
    scheduler.end_program("second")
    assert awaited(scheduler) == 0


def test_a_branch_that_comes_back_by_another_way_is_no_longer_awaited_on_the_first() -> None:
    scheduler = scheduler_of(32)
    compute(scheduler, 1, unlike(1, 16), program="old", returns=True, return_seconds=900.0)
    assert awaited(scheduler) == 4
    scheduler.add(make(2, [*unlike(1, 12), *unlike(2, 8)], program="old"))
    commit(scheduler, scheduler.plan())
    assert awaited(scheduler) == 0


def test_of_options_that_were_scored_only_their_prompt_is_awaited_until_the_program_ends() -> None:
    scheduler = scheduler_of(32)
    for index in range(2):
        way = make(1, [*unlike(1, 16), *unlike(2 + index, 8)], max_output=1, program="old", returns=True, return_seconds=900.0)
        way.goes_on = 16
        scheduler.add(way)
        commit(scheduler, scheduler.plan())
        scheduler.remove(way, keep=True)
    assert awaited(scheduler) == 4
    scheduler.end_program("old")
    assert awaited(scheduler) == 0
    scheduler.check()


def test_a_preempted_call_that_is_aborted_is_no_longer_awaited() -> None:
    scheduler = scheduler_of(9)
    first, second = make(1, unlike(1, 11)), make(2, unlike(2, 11))
    for sequence in (first, second):
        scheduler.add(sequence)
    while not second.preemptions:
        commit(scheduler, scheduler.plan())
    assert awaited(scheduler) > 0
    scheduler.remove(second, keep=False)
    assert awaited(scheduler) == 0


def test_what_never_comes_back_does_not_keep_a_machine_idle() -> None:
    scheduler = paused(pages=60)
    for arrival in (3, 4):
        compute(scheduler, arrival, unlike(arrival, 60), program=f"lost {arrival}", returns=True, return_seconds=1_000.0)
    new = [make(arrival, unlike(arrival, 100), program=f"new {arrival}", max_output=1) for arrival in range(5, 15)]
    for sequence in new:
        scheduler.add(sequence)
    plans = 0
    while any(sequence.status is not Status.FINISHED for sequence in new):
        commit(scheduler, scheduler.plan())
        plans += 1
        for sequence in scheduler.running:
            if not sequence.samples:
                scheduler.remove(sequence, keep=True)
    assert plans <= (HELD_PLANS + 2) * len(new) <= 6 * len(new), "two plans to compute each, and a few in which nothing is begun"
