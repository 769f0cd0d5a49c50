"""Running ahead: the next step begins before the last one's result is known, and nothing else changes."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.spec import Choice, Regex
from branchpoint.radix import Swap
from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.messages import Call, Completed, Failed, ScoreCall
from branchpoint.runtime.plan import PageCopy, RowResult, Slot, StepPlan, StepUnderWay
from branchpoint.runtime.runner import TorchRunner, TorchStep
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.expected import assert_as_expected
from tests.runtime.scripted import (
    CONTEXT,
    Collected,
    ListGrammar,
    ListMatcher,
    Scripted,
    ScriptedCompiler,
    ScriptedRunner,
    collect,
    make_engine,
    run,
)
from tests.runtime.strategies import constraints, prompts, samplings
from tests.runtime.test_engine_invariants import RELAXED

PROMPT = tuple(range(1, 12))


def _call(name: str, prompt: tuple[int, ...] = PROMPT, **options: object) -> Call:
    return Call(name, prompt, SamplingParams(**{"max_tokens": 12, "seed": 3, "ignore_eos": True, **options}))  # type: ignore[arg-type]


def _with_two_waiting(engine: Engine, calls: Sequence[Call]) -> dict[str, Collected]:
    """What `calls` come to where two of them wait at any time."""
    results: dict[str, Collected] = {}
    left = iter(calls)
    while engine.has_work or not results:
        while engine.stats().waiting < 2 and (one := next(left, None)):
            engine.submit(one)
        collect(engine.step(), results)
        engine.check()
    return results


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
def test_what_hangs_on_the_tokens_before_is_drawn_once_they_are_known(options: dict[str, float]) -> None:
    known: list[bool] = []

    class Told(ScriptedRunner):
        def row(self, slot: Slot, position: int, *rest: Any) -> RowResult:
            known.append(position < slot.sequence.num_tokens)
            return super().row(slot, position, *rest)

    runner = Told(runs_ahead=True)
    run(make_engine(runner), _call("a", **options))
    assert runner.num_ahead == 11 and known == [True] * 12


class Loose(ListMatcher):
    """A mask takes a few tokens too many; what is drawn is asked about."""

    def fill_loosely(self, row: MaskRow) -> "Loose":  # type: ignore[override]
        self.fill(row)
        row.view(np.uint32)[0] |= np.uint32(sum(1 << token for token in (1, 5, 9, 13)))
        return self

    def allows(self, token: int) -> bool:
        return token in self._here()

    def narrow(self, row: MaskRow) -> None:
        self.fill(row)


class LooseCompiler(ScriptedCompiler):
    def _grammar(self, constraint: object, prefix: bytes) -> ListGrammar:
        sets = super()._grammar(constraint, prefix).sets  # type: ignore[arg-type]
        grammar = ListGrammar(sets)
        grammar.matcher = lambda: Loose(sets)  # type: ignore[method-assign]
        return grammar


FORCED = Choice(("1,2,3", "7", "8", "4,5", "6,9", "2", "1,3", "4,5,6", "1,2", "3,4", "5,6"))


@pytest.mark.parametrize("constraint", [Choice(("1,2,3",) * 9), FORCED], ids=["open", "partly forced"])
def test_a_grammar_lets_the_next_step_begin_before_its_mask_is_known(constraint: Choice) -> None:
    order: list[str] = []

    class Told(ScriptedRunner):
        def launch(self, plan: StepPlan, *before: Scripted) -> Scripted:
            order.append("launch")
            return super().launch(plan, *before)

    class Filled(ScriptedCompiler):
        def _grammar(self, constraint: object, prefix: bytes) -> ListGrammar:
            class Matched(ListMatcher):
                def fill(self, row: MaskRow) -> None:
                    order.append("fill")
                    super().fill(row)

            sets = super()._grammar(constraint, prefix).sets  # type: ignore[arg-type]
            grammar = ListGrammar(sets)
            grammar.matcher = lambda: Matched(sets)  # type: ignore[method-assign]
            return grammar

    runner = Told(runs_ahead=True)
    engine = make_engine(runner, Filled())
    one = msgspec.structs.replace(_call("a"), constraint=constraint)
    assert_as_expected(one, run(engine, one)["a"])
    steps = len(runner.plans)
    assert runner.num_ahead >= steps - 3  # all but the prompt's, and those at the end
    first = order.index("launch", 1 + order.index("launch"))
    assert order.index("fill", first) > first, "masks of a step ahead were filled before it was launched"
    engine.check()
    engine.close()


def test_a_call_beside_one_with_a_grammar_still_runs_ahead() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    engine = make_engine(runner)
    calls = [_call("free"), msgspec.structs.replace(_call("held"), constraint=FORCED), _call("free too", PROMPT[2:])]
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id])
    assert runner.num_ahead >= len(runner.plans) - 3
    engine.close()


def test_logprobs_of_what_a_grammar_forces_are_run_ahead_of() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    one = msgspec.structs.replace(_call("a", logprobs=1), constraint=FORCED)
    assert_as_expected(one, run(make_engine(runner), one)["a"])
    assert runner.num_ahead >= len(runner.plans) - 3


def test_chunks_of_prompts_follow_each_other_without_a_wait() -> None:
    """Whatever decodes beside them, and though more prompts wait than there is room for."""
    runner = ScriptedRunner(runs_ahead=True)
    engine = make_engine(runner, max_batch_tokens=8, max_sequences=3)
    long = tuple(number % 38 for number in range(40))
    calls = [_call("first"), *(_call(f"c{number}", (number, *long), prompt_logprobs=0) for number in range(3))]
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id])
    chunks = [plan for plan in runner.plans if any(slot.sequence.num_prompt > slot.start + slot.count for slot in plan.slots)]
    assert sum(bool(plan.sources) for plan in chunks) >= len(chunks) - 4
    engine.check()


@pytest.mark.parametrize(
    ("pages", "options"),
    [(64, {}), (64, {"max_sequences": 3}), (14, {}), (64, {"max_batch_tokens": 8}), (40, {"policy": "lpm", "host_pages": 40})],
    ids=["room for all", "no place", "no pages", "no budget", "host tier"],
)
def test_whoever_waits_is_admitted_while_a_step_runs_and_keeps_no_step_from_running_ahead(
    pages: int, options: dict[str, object]
) -> None:
    runner = ScriptedRunner(pages, runs_ahead=True)
    engine = make_engine(runner, **options)
    calls = [_call(f"c{number}", tuple((at * (1 + number % 5)) % 38 for at in range(9 + number % 3))) for number in range(40)]
    results = _with_two_waiting(engine, calls)
    for one in calls:
        assert_as_expected(one, results[one.id])
    preempted = sum(got.end.usage.preemptions for got in results.values() if isinstance(got.end, Completed))
    assert bool(preempted) == (pages < 20)
    if preempted:  # who needs pages waits for those of others that end, or have to make room
        assert runner.num_ahead > 0.8 * len(runner.plans)
    else:
        assert runner.num_ahead == len(runner.plans) - 1


def test_a_copy_for_one_that_is_admitted_while_a_step_runs_is_held_until_its_own_step_has_run() -> None:
    runner = ScriptedRunner(12, runs_ahead=True)
    engine = make_engine(runner)
    run(engine, before := _call("before", max_tokens=3))
    engine.submit(stream := _call("stream", (20, 21), max_tokens=12))
    results: dict[str, Collected] = {}
    for _ in range(3):
        collect(engine.step(), results)
    engine.submit(again := msgspec.structs.replace(before, id="again"))
    engine.submit(gone := _call("gone", (*PROMPT, 30), max_tokens=3))
    collect(engine.step(), results)
    assert [bool(plan.sources) for plan in runner.plans if any(isinstance(copy, PageCopy) for copy in plan.copies)] == [True]
    engine.abort("gone")
    engine.check()
    engine.submit(last := _call("last", tuple(range(12, 34)), max_tokens=3))
    while engine.has_work:
        collect(engine.step(), results)
        engine.check()
    assert isinstance(results[gone.id].end, Failed)
    for one in (stream, again, last):
        assert_as_expected(one, results[one.id])


def test_evicted_pages_leave_and_come_back_while_steps_run_ahead() -> None:
    runner = ScriptedRunner(24, runs_ahead=True)
    engine = make_engine(runner, host_pages=40, max_sequences=2)
    prompts = [tuple((7 * at + number) % 38 for at in range(30)) for number in range(4)]
    for name in ("once", "again"):
        for number, prompt in enumerate(prompts):
            one = _call(f"{name} {number}", prompt, max_tokens=30)
            assert_as_expected(one, run(engine, one)[one.id])
            engine.check()
    swaps = [(copy.to_host, bool(plan.sources)) for plan in runner.plans for copy in plan.copies if isinstance(copy, Swap)]
    assert (True, True) in swaps and (False, False) in swaps and (False, True) not in swaps


def test_a_token_that_is_refused_when_it_is_known_takes_the_step_ahead_of_it_along() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    engine = make_engine(runner, LooseCompiler())
    calls = [msgspec.structs.replace(_call("held"), constraint=FORCED), _call("free", max_tokens=20)]
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id])
    starts = [slot.start for plan in runner.plans for slot in plan.slots if slot.sequence.call_id == "held"]
    assert runner.num_ahead > 0 and len(starts) > len(set(starts)), "no step was computed in vain"
    engine.close()


@given(st.data())
@settings(RELAXED, max_examples=60)
def test_calls_say_the_same_wherever_they_end_and_whatever_is_forced(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 4, 16]))
    runner = ScriptedRunner(data.draw(st.integers(-(-50 // page_size), 400 // page_size)), page_size, runs_ahead=True)
    compiler = data.draw(st.sampled_from([ScriptedCompiler, LooseCompiler]))()
    options = {
        "max_sequences": data.draw(st.sampled_from([1, 3, 16])),
        "max_batch_tokens": data.draw(st.sampled_from([3, 10, 64])),
        "host_pages": data.draw(st.sampled_from([0, 0, 30])),
    }
    engine = make_engine(runner, compiler, **options)
    calls = []
    for number in range(data.draw(st.integers(1, 5))):
        prompt = data.draw(prompts(20))
        held = data.draw(st.one_of(st.none(), constraints))
        calls.append(Call(f"c{number}", prompt, data.draw(samplings(len(prompt), 12)), held))
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


def _say(
    calls: Sequence[Call | ScoreCall], *, ahead: bool, kind: str = "cpu", **options: Any
) -> tuple[dict[str, Collected], float]:
    """What a real model says to calls that arrive while steps are under way, and the share of steps that ran ahead."""
    given = {"model": "dummy:llama", "num_pages": 20, "threads": 1, "seed": 1, "page_size": 4, "max_batch_tokens": 8, **options}
    loaded = build_engine(EngineConfig(**given))
    engine = loaded.engine
    assert isinstance(engine, Engine)
    runner, steps = engine._runner, list[bool]()
    assert isinstance(runner, TorchRunner)
    launch, runner.runs_ahead = runner.launch, ahead  # told to do what it does on a GPU

    def count(plan: StepPlan, *before: StepUnderWay) -> TorchStep:
        steps.append(bool(before))
        return launch(plan, *before)

    runner.launch = count  # type: ignore[method-assign]
    if kind == "device":
        from branchpoint.runtime.device_sampler import DeviceSampler

        runner._sampler = DeviceSampler(runner._sampler._eos)
    results = _with_two_waiting(engine, calls)
    engine.close()
    loaded.close()
    return results, sum(steps) / len(steps)


@pytest.mark.parametrize("kind", ["cpu", pytest.param("device", marks=pytest.mark.slow)])
def test_a_real_model_says_the_same_when_it_runs_ahead(kind: str) -> None:
    if kind == "device":
        pytest.importorskip("triton")
    calls: list[Call | ScoreCall] = [
        Call("greedy", (5, 6, 7), SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)),
        Call("drawn", (9, 1), SamplingParams(seed=4, max_tokens=6, logprobs=2, ignore_eos=True)),
        Call("held", (4, 2), SamplingParams(seed=1, max_tokens=24, logprobs=1), Regex("(ab|cd)(ef|gh){6}[a-f]{3}ok")),
        Call("penalised", tuple(range(30)), SamplingParams(seed=5, max_tokens=9, repetition_penalty=1.5, frequency_penalty=1.0)),
        ScoreCall("pooled", tuple(range(20)), (), pooling="mean"),
        Call("stops", (8,), SamplingParams(seed=2, max_tokens=12, top_p=0.9, stop_token_ids=tuple(range(0, 512, 5)))),
    ]
    (expected, _), (said, _) = (_say(calls, ahead=ahead, kind=kind) for ahead in (False, True))
    for name, each in expected.items():
        assert (said[name].tokens, said[name].finished) == (each.tokens, each.finished)
        assert name == "pooled" or isinstance(said[name].end, Completed)


def test_a_real_model_under_constant_load_runs_all_steps_ahead_but_the_first() -> None:
    calls = [
        Call(
            f"c{number}",
            tuple(range(number, number + 9)),
            SamplingParams(seed=number, max_tokens=9 + number % 5, ignore_eos=True),
        )
        for number in range(10)
    ]
    options = {"num_pages": 128, "max_sequences": 3, "max_batch_tokens": 32, "cpu_weights": "float32"}
    (expected, alone), (said, share) = (_say(calls, ahead=ahead, **options) for ahead in (False, True))
    assert {name: each.tokens for name, each in said.items()} == {name: each.tokens for name, each in expected.items()}
    assert alone == 0.0 and share > 0.97
