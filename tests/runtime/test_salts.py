"""Calls of two salts share nothing, and neither finds out what the other has in the cache: by counts, by waiting or by order."""

from branchpoint.runtime.messages import Call, Completed, Hints, ScoreCall, Scored
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.scripted import ScriptedRunner, collect, make_engine, run
from tests.runtime.test_scheduler import commit, make, make_scheduler, unlike

PROMPT = tuple(range(24))
ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1)


def asked(name: str, salt: str) -> list[Call | ScoreCall]:
    return [
        Call(f"{name} gen", PROMPT, ONE_TOKEN, namespace=salt, hints=Hints(program="p", returns=True)),
        ScoreCall(f"{name} score", PROMPT, ((1, 2), (3,)), namespace=salt),
    ]


def test_counts_are_those_of_an_engine_where_nobody_else_was() -> None:
    usages = []
    for others in ((), ("b", "c")):
        runner = ScriptedRunner(num_pages=64, page_size=4)
        engine = make_engine(runner)
        for other in others:
            for call in asked(other, other):
                run(engine, call)
        steps = len(runner.plans)
        for call in asked("mine", "a"):
            end = run(engine, call)[call.id].end
            assert isinstance(end, Completed | Scored)
            usages.append((end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.prefilled_tokens))
        usages.append((len(runner.plans) - steps, sum(plan.num_tokens for plan in runner.plans[steps:]), 0))
        engine.close()
    assert usages[:3] == usages[3:], "own counts, and what was computed in how many steps, tell of no one else"


def test_nobody_waits_for_a_prefix_that_another_salt_computes() -> None:
    scheduler = make_scheduler()
    mine, theirs = make(0, unlike(0, 16)), make(1, unlike(0, 16))
    theirs.namespace = "b"
    for sequence in (mine, theirs):
        scheduler.add(sequence)
    plan = scheduler.plan()
    assert plan is not None and [slot.count for slot in plan.slots] == [16, 16]
    commit(scheduler, plan)
    scheduler.remove(mine, keep=True)
    scheduler.remove(theirs, keep=True)
    assert mine.cached == theirs.cached == 0


def test_programs_of_one_name_in_two_salts_are_two() -> None:
    scheduler = make_scheduler("program", most=1)
    theirs = make(0, unlike(0, 16), program="p")
    theirs.namespace = "b"
    scheduler.add(theirs)
    commit(scheduler, scheduler.plan())
    scheduler.remove(theirs, keep=True)
    scheduler.add(make(1, unlike(1, 16), program="mine"))
    scheduler.add(make(2, unlike(2, 16), program="p", ended=("p",)))
    scheduler.end_program("p", "c")
    assert [sequence.arrival for sequence in scheduler.waiting] == [1, 2]
    plan = scheduler.plan()
    assert plan is not None and [slot.sequence.arrival for slot in plan.slots] == [1], "the other p has begun, this one hasn't"
    assert ("b", "p") in scheduler._programs._programs, "nobody else has ended it"
    scheduler.end_program("p", "b")
    assert ("b", "p") not in scheduler._programs._programs


def test_no_order_of_admission_looks_at_what_another_salt_has_cached() -> None:
    for policy in ("lpm", "program"):
        scheduler = make_scheduler(policy, most=1)
        first = make(0, unlike(0, 16))
        first.namespace = "b"
        scheduler.add(first)
        commit(scheduler, scheduler.plan())
        scheduler.remove(first, keep=True)
        scheduler.add(make(1, unlike(1, 16)))
        scheduler.add(make(2, unlike(0, 16)))
        plan = scheduler.plan()
        assert plan is not None and [slot.sequence.arrival for slot in plan.slots] == [1]


def test_a_dump_and_a_flush_know_salts_apart() -> None:
    engine = make_engine(ScriptedRunner(num_pages=64, page_size=4))
    results: dict[str, object] = {}
    for salt in ("a", "b"):
        for call in asked(salt, salt):
            engine.submit(call)
    while engine.has_work:
        collect(engine.step(), results)  # type: ignore[arg-type]
    nodes = engine.dump_cache().tree["nodes"]
    assert {node["namespace"] for node in nodes} == {"a", "b"}
    engine.close()
