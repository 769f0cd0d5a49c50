"""Running ahead: the next step begins before the last one's result is known, and nothing else changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.messages import Call, Completed, Failed
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.expected import assert_as_expected
from tests.runtime.scripted import CONTEXT, Collected, ScriptedRunner, collect, make_engine, run
from tests.runtime.strategies import prompts, samplings
from tests.runtime.test_engine_invariants import RELAXED

PROMPT = tuple(range(1, 12))


def _call(name: str, prompt: tuple[int, ...] = PROMPT, **options: object) -> Call:
    return Call(name, prompt, SamplingParams(**{"max_tokens": 12, "seed": 3, "ignore_eos": True, **options}))  # type: ignore[arg-type]


def test_steps_of_decoding_follow_each_other_without_a_wait() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    engine = make_engine(runner)
    calls = [_call(f"c{number}", PROMPT[number:], max_tokens=10 + number) for number in range(3)]
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id])
    assert runner.num_ahead == 11  # of twelve tokens in a row only the first comes of a prompt
    assert sum(plan.num_tokens for plan in runner.plans) == engine.stats().computed_tokens
    assert not any(slot.count == 0 for plan in runner.plans for slot in plan.slots)
    engine.check()
    engine.close()


@pytest.mark.parametrize(
    "options",
    [{"repetition_penalty": 1.2}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}],
    ids=lambda each: next(iter(each)),
)
def test_what_hangs_on_the_tokens_before_waits_for_them(options: dict[str, float]) -> None:
    runner = ScriptedRunner(runs_ahead=True)
    run(make_engine(runner), _call("a", **options))
    assert runner.num_ahead == 0


@given(st.data())
@settings(RELAXED, max_examples=40)
def test_free_calls_say_the_same_wherever_they_end(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    runner = ScriptedRunner(data.draw(st.integers(-(-50 // page_size), 400 // page_size)), page_size, runs_ahead=True)
    engine = make_engine(runner, max_sequences=data.draw(st.sampled_from([1, 3, 16])), max_batch_tokens=64)
    calls = []
    for number in range(data.draw(st.integers(1, 5))):
        prompt = data.draw(prompts(20))
        calls.append(Call(f"c{number}", prompt, data.draw(samplings(len(prompt), 12))))
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id], min(CONTEXT, runner.num_pages * page_size))
    engine.check()
    stats = engine.stats()
    assert stats.pages_held == 0 and stats.pages_free + stats.pages_cached == runner.num_pages
    engine.close()


def test_a_call_that_is_aborted_or_breaks_while_a_step_is_ahead_ends_once() -> None:
    runner = ScriptedRunner(runs_ahead=True, poison=frozenset({33}))
    engine = make_engine(runner)
    results: dict[str, Collected] = {}
    for one in (_call("kept"), _call("aborted", PROMPT[1:]), _call("sick", (*PROMPT, 33))):
        engine.submit(one)
    for _ in range(3):
        collect(engine.step(), results)
    engine.abort("aborted")
    runner.fault = None
    while engine.has_work:
        collect(engine.step(), results)
        engine.check()
    assert isinstance(results["aborted"].end, Failed) and isinstance(results["sick"].end, Failed)
    assert isinstance(results["kept"].end, Completed)
    assert_as_expected(_call("kept"), results["kept"])


def test_a_step_that_fails_takes_the_one_ahead_of_it_along() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    engine = make_engine(runner)
    results: dict[str, Collected] = {}
    engine.submit(_call("a"))
    for _ in range(3):
        collect(engine.step(), results)
    runner.fault = OSError("broken")
    while engine.has_work:
        collect(engine.step(), results)
    failure = results["a"].end
    assert isinstance(failure, Failed) and "broken" in failure.message
    assert_as_expected(_call("b"), run(engine, _call("b"))["b"])
    engine.check()


@pytest.mark.parametrize("kind", ["cpu", pytest.param("device", marks=pytest.mark.slow)])
def test_a_real_model_says_the_same_when_it_runs_ahead(kind: str) -> None:
    if kind == "device":
        pytest.importorskip("triton")
    calls = [
        Call("greedy", (5, 6, 7), SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)),
        Call("drawn", (9, 1), SamplingParams(seed=4, max_tokens=6, logprobs=2, ignore_eos=True)),
        Call("stops", (8,), SamplingParams(seed=2, max_tokens=12, top_p=0.9, stop_token_ids=tuple(range(0, 512, 5)))),
    ]
    said: list[dict[str, Collected]] = []
    for ahead in (False, True):
        loaded = build_engine(EngineConfig(model="dummy:llama", num_pages=64, threads=1, seed=1, page_size=4))
        runner = loaded.engine._runner  # type: ignore[attr-defined]  # a real one, told to do what it does on a GPU
        assert isinstance(runner, TorchRunner)
        runner.runs_ahead = ahead
        if kind == "device":
            from branchpoint.runtime.device_sampler import DeviceSampler

            runner._sampler = DeviceSampler(runner._sampler._eos)
        results: dict[str, Collected] = {}
        for one in calls:
            loaded.engine.submit(one)
        while loaded.engine.has_work:
            collect(loaded.engine.step(), results)
        said.append(results)
        loaded.engine.close()
        loaded.close()
    for name, expected in said[0].items():
        assert said[1][name].tokens == expected.tokens
        assert said[1][name].finished == expected.finished
