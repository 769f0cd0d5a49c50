"""Running streams don't wait long for their next token while prompts come in, and the prompts come to their ends all the same."""

from dataclasses import dataclass, field

import pytest

from branchpoint.radix import PrefixKey
from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.messages import Call, Delta
from branchpoint.runtime.pace import FIRST, LEAST, Pace
from branchpoint.runtime.plan import MaskSource, Slot, StepPlan, StepResult
from branchpoint.runtime.policy import make_order
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.scheduler import Scheduler
from tests.runtime.scripted import Scripted, ScriptedRunner, Ticking, make_engine, run
from tests.runtime.test_scheduler import make, unlike

SETUP, TOKEN, CONTEXT = 0.05, 0.005, 5e-6


@dataclass
class SlowRunner(ScriptedRunner):
    """Takes its time: for a step, for each token, and for each token that one attends to."""

    clock: Ticking = field(default_factory=Ticking)

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        self.clock.now += cost(plan)
        return super().execute(plan, masks)


def cost(plan: StepPlan) -> float:
    return SETUP + sum(slot.count * (TOKEN + CONTEXT * slot.start) for slot in plan.slots)


def call(name: str, prompt: range, tokens: int) -> Call:
    return Call(name, tuple(place % 38 for place in prompt), SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))


def gaps(bound: float) -> tuple[float, int, dict[str, tuple[int, ...]]]:
    """The longest gap of two streams while a prompt of 350 tokens comes in, in how many steps, and what all say."""
    runner = SlowRunner(num_pages=256, page_size=4)
    engine = make_engine(runner, clock=runner.clock, max_step_seconds=bound, max_batch_tokens=256)
    run(engine, call("before", range(3, 100), 1))
    streams = [call(f"stream {start}", range(start, start + 9), 100) for start in (1, 5)]
    heard: dict[str, float] = {}
    said: dict[str, tuple[int, ...]] = {}
    longest, steps = 0.0, 0
    for one in streams:
        engine.submit(one)
    for number in range(400):
        if number == 10:
            engine.submit(call("long", range(7, 357), 1))
        steps += number >= 10 and "long" not in said
        for event in engine.step():
            if isinstance(event, Delta):
                said[event.id] = said.get(event.id, ()) + event.tokens
                longest = max(longest, runner.clock.now - heard.get(event.id, runner.clock.now))
                heard[event.id] = runner.clock.now
        if not engine.has_work:
            break
    engine.check()
    engine.close()
    return longest, steps, said


def test_a_long_prompt_does_not_hold_streams_up_for_longer_than_was_asked() -> None:
    unbounded, few, texts = gaps(0.0)
    assert unbounded > 1.2 and few == 2
    for bound in (0.5, 0.25):
        longest, steps, same = gaps(bound)
        assert longest < 1.2 * bound and same == texts
        assert steps < 1.3 * 350 * TOKEN / (bound - SETUP), "as few steps as the bound allows"


@dataclass
class SlowDevice(SlowRunner):
    """Takes its time beside the host, which waits only for what a step has drawn."""

    runs_ahead: bool = True
    busy_until: float = 0.0

    def launch(self, plan: StepPlan, *before: Scripted) -> Scripted:
        step = super().launch(plan, *before)
        self.busy_until = max(self.clock.now, self.busy_until) + cost(plan)
        done, finish = self.busy_until, step.finish

        def wait() -> StepResult:
            self.clock.now = max(self.clock.now, done)
            return finish()

        step.finish = wait  # type: ignore[method-assign]
        return step


def test_what_a_step_ahead_waits_for_the_one_before_it_is_none_of_its_own_time() -> None:
    runner = SlowDevice(num_pages=512, page_size=4)
    engine = make_engine(runner, clock=runner.clock, max_step_seconds=0.25, max_batch_tokens=256)
    engine.submit(call("stream", range(9), 300))
    heard = longest = 0.0
    for step in range(150):
        if step % 4 == 0:
            engine.submit(call(f"prompt {step}", range(step, step + 60), 1))
        for event in engine.step():
            if isinstance(event, Delta) and event.id == "stream":
                longest = max(longest, runner.clock.now - heard) if step > 20 else 0.0
                heard = runner.clock.now
    engine.check()
    engine.close()
    assert longest < 0.26, "the first steps apart, before any was measured"


def test_prompts_go_on_however_slow_they_are() -> None:
    longest, steps, _ = gaps(1e-6)
    assert steps <= 350 // LEAST + 2 and longest < 2.5 * (SETUP + LEAST * TOKEN), "twice what a step takes without a prompt"


def test_without_streams_a_step_takes_the_whole_budget() -> None:
    runner = SlowRunner(num_pages=256, page_size=4)
    engine = make_engine(runner, clock=runner.clock, max_step_seconds=0.1, max_batch_tokens=256)
    run(engine, call("long", range(200), 1))
    assert [plan.num_tokens for plan in runner.plans] == [200]
    engine.close()


def plan_of(prompt: int, decoding: int = 0) -> StepPlan:
    """So many tokens of a prompt, and so many sequences that decode."""
    slots = [Slot(make(1 + number, unlike(1, 4)), 4, 1) for number in range(decoding)]
    return StepPlan((*slots, Slot(make(0, unlike(0, 1_000)), 0, prompt)) if prompt else tuple(slots))


def test_what_is_not_known_yet_is_tried_in_a_small_step_and_then_doubled() -> None:
    pace = Pace(0.25)
    rooms = [pace.room]
    for _ in range(4):
        pace.note(plan_of(pace.room, 2), 0.01)
        rooms.append(pace.room)
    assert rooms == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST]
    pace.note(plan_of(40), 0.02)
    assert pace.room == rooms[-1], "a short prompt tells nothing about a long one"


def test_one_step_that_something_else_held_up_is_soon_forgotten() -> None:
    pace = Pace(0.25)
    for _ in range(4):
        pace.note(plan_of(pace.room), 0.001 * pace.room)
    assert pace.room == pytest.approx(250, abs=1)
    pace.note(plan_of(pace.room), 10.0)
    assert pace.room == pytest.approx(62, abs=1)
    for _ in range(2):
        pace.note(plan_of(pace.room), 0.001 * pace.room)
    assert pace.room == pytest.approx(250, abs=2)


def test_where_streams_alone_take_longer_prompts_may_take_as_much_again() -> None:
    pace = Pace(0.25)
    for _ in range(3):
        pace.note(plan_of(0, 3), 0.6)
    for _ in range(8):
        pace.note(plan_of(pace.room, 3), 0.6 + 0.002 * pace.room)
    assert pace.room == pytest.approx(300, abs=10)


def test_what_is_computed_again_after_a_preemption_comes_at_the_pace_of_prompts() -> None:
    kv = KVCache(64, 4)
    scheduler = Scheduler(kv, make_order("fcfs", kv.cached_tokens), max_batch_tokens=200, max_sequences=8, max_step_seconds=1e-6)
    stream, back = make(0, unlike(0, 3)), make(1, unlike(1, 150))
    back.num_prompt, back.peak = 4, 149  # all of its output but this much has left the tree
    kv.tree.insert(PrefixKey("", back.tokens[:8]), pages := kv.pool.allocate(2))
    kv.pool.release(pages)
    chunks = []
    for sequence in (stream, back):
        scheduler.add(sequence)
        for _ in range(3):
            plan = scheduler.plan()
            assert plan is not None
            chunks += [slot.count for slot in plan.slots if slot.sequence is back]
            scheduler.commit(plan, set())
            scheduler.took(plan, float(plan.num_tokens))
            stream.tokens.append(7)
    assert chunks == [LEAST] * 3
    scheduler.check()
