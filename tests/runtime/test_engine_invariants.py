"""Whatever the pages, batches, chunks and neighbours: the same tokens, one end for each call, and no page lost."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.messages import Call, Completed, Failed, ScoreCall, Scored
from tests.runtime.expected import assert_as_expected
from tests.runtime.scripted import CONTEXT, Collected, ScriptedCompiler, ScriptedRunner, Ticking, collect, make_engine, run
from tests.runtime.strategies import any_call

LONGEST, MOST = 30, 12
MOST_STEPS = 50_000  # a token at a time, fifty calls of up to three samples in a pool for one take several thousand
RELAXED = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink what fails takes longer than a test may
)

pools = st.sampled_from([1, 4, 16, 64]).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(-(-(LONGEST + MOST + 6) // size), 400 // size + 4))
)
setups = st.fixed_dictionaries(
    {
        "max_batch_tokens": st.sampled_from([1, 3, 16, 64]),
        "max_sequences": st.sampled_from([1, 3, 16]),
        "policy": st.sampled_from(["fcfs", "lpm", "program"]),
        "radix_cache": st.booleans(),
        "host_pages": st.sampled_from([0, 0, 3, 40]),
    }
)


@settings(RELAXED, max_examples=150)
@given(st.data(), pools, setups)
def test_same_tokens_at_any_page_size_chunk_pool_and_batch(
    data: st.DataObject, pool: tuple[int, int], setup: dict[str, object]
) -> None:
    page_size, num_pages = pool
    runner = ScriptedRunner(num_pages, page_size, runs_ahead=data.draw(st.booleans()))
    engine = make_engine(runner, **setup)
    calls = [data.draw(any_call(f"c{number}", LONGEST, MOST)) for number in range(data.draw(st.integers(1, 6)))]
    length = min(CONTEXT, num_pages * page_size)
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id], length)
    stats = engine.stats()
    assert stats.pages_held == 0 and stats.pages_free + stats.pages_cached == num_pages
    assert all(plan.num_tokens <= setup["max_batch_tokens"] for plan in runner.plans)
    for one, got in ((one, results[one.id].end) for one in calls):
        assert isinstance(got, Completed | Scored)
        if not got.usage.preemptions and (isinstance(one, Call) and one.sampling.n == 1):
            assert got.usage.cached_tokens + got.usage.prefilled_tokens == got.usage.prompt_tokens
    engine.close()


@settings(RELAXED, max_examples=60)
@given(st.data())
def test_whatever_fits_alone_finishes_in_the_smallest_pool(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16, 64]))
    calls = [data.draw(any_call(f"c{number}", LONGEST, MOST)) for number in range(data.draw(st.integers(3, 8)))]
    runner = ScriptedRunner(-(-(LONGEST + 7) // page_size), page_size)
    length = runner.num_pages * page_size
    engine = make_engine(runner, max_sequences=16, max_batch_tokens=64, policy=data.draw(st.sampled_from(["fcfs", "program"])))
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id], length)
    engine.close()


class EngineMachine(RuleBasedStateMachine):
    """Submits, steps, aborts and breaks at random; checks the books after each, and the answers at the end."""

    @initialize(pool=st.sampled_from([(1, 60), (4, 14), (4, 60), (16, 8), (64, 3)]), setup=setups, ahead=st.booleans())
    def start(self, pool: tuple[int, int], setup: dict[str, object], ahead: bool) -> None:
        self.runner = ScriptedRunner(pool[1], pool[0], runs_ahead=ahead)
        self.compiler = ScriptedCompiler(at_once=False)
        self.calls: dict[str, Call | ScoreCall] = {}
        self.clock = Ticking()
        self.engine = make_engine(self.runner, self.compiler, speculation=self.speculation(), clock=self.clock, **setup)
        self.results: dict[str, Collected] = {}
        self.disturbed = set[str]()

    def speculation(self) -> Speculation | None:
        return None

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        one = data.draw(any_call(f"c{len(self.calls)}", LONGEST, MOST))
        self.engine.submit(one)
        self.calls[one.id] = one

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            collect(self.engine.step(), self.results)

    @rule()
    def compile(self) -> None:
        self.compiler.release()

    @rule(data=st.data())
    @precondition(lambda self: self.calls)
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.calls)))
        self.engine.abort(name)
        self.disturbed.add(name)

    @rule()
    def fault(self) -> None:
        self.runner.fault = ValueError("a fault")
        collect(self.engine.step(), self.results)
        self.runner.fault = None

    @rule(seconds=st.sampled_from([0.2, 31.0, 4_000.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def flush(self) -> None:
        self.engine.flush_cache()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.compiler.release()
        for _ in range(MOST_STEPS):
            if not self.engine.has_work:
                break
            collect(self.engine.step(), self.results)
        assert not self.engine.has_work, f"{MOST_STEPS} steps did not finish the calls: {self.engine.stats()}"
        self.engine.check()
        stats = self.engine.stats()
        assert stats.pages_held == 0 and stats.running == stats.waiting == stats.compiling == 0
        assert self.results.keys() == self.calls.keys()
        for name, got in self.results.items():
            if isinstance(got.end, Failed):
                assert name in self.disturbed or "a fault" in got.end.message
            else:
                assert_as_expected(self.calls[name], got, self.runner.num_pages * self.runner.page_size)
        assert stats.completed_calls + stats.failed_calls == len(self.calls)
        self.engine.close()


EngineMachine.TestCase.settings = settings(RELAXED, max_examples=100, stateful_step_count=30)
test_random_operations_keep_the_books_and_the_answers = EngineMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(7_200)  # some ten minutes of computing, on a machine that may do other things too
class TestManyRandomOperations(EngineMachine.TestCase):  # type: ignore[misc,name-defined]
    """The same, a hundred thousand operations."""

    settings = settings(RELAXED, max_examples=2_000, stateful_step_count=50)
