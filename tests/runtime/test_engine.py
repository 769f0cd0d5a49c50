"""One call at a time, mostly: what the engine answers, refuses and survives."""

import pytest

from branchpoint.constrained.spec import Choice
from branchpoint.runtime.admission import derive_seed
from branchpoint.runtime.errors import CapacityError, EngineDead, InvalidRequest, Overloaded
from branchpoint.runtime.messages import Call, Completed, Failed, ScoreCall, Scored
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.expected import assert_as_expected, expect
from tests.runtime.scripted import (
    CONTEXT,
    EOS,
    VOCABULARY,
    ListMatcher,
    ScriptedCompiler,
    ScriptedRunner,
    collect,
    make_engine,
    run,
    text_of,
)

PROMPT = tuple(range(1, 12))


def call(name: str = "a", prompt: tuple[int, ...] = PROMPT, constraint: Choice | None = None, **options: object) -> Call:
    return Call(name, prompt, SamplingParams(**{"max_tokens": 12, "seed": 3, **options}), constraint)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"n": 3},
        {"max_tokens": None},
        {"max_tokens": 1},
        {"logprobs": 0},
        {"logprobs": 3, "n": 2},
        {"prompt_logprobs": 2},
        {"prompt_logprobs": 0, "prompt_logprobs_start": 7, "logprobs": 1},
        {"prompt_logprobs": 1, "prompt_logprobs_start": 10, "n": 2},
        {"max_tokens": 0},
        {"max_tokens": 0, "prompt_logprobs": 1},
        {"ignore_eos": True, "max_tokens": 200},
        {"min_tokens": 60, "max_tokens": 100, "stop_token_ids": (5, 6, 7)},
        {"max_tokens": 200, "stop_token_ids": (5, 6, 7)},
        {"max_tokens": 200, "stop_token_ids": (5, 6, 7), "include_stop": True, "logprobs": 1},
        {"max_tokens": 200, "stop": ("ab",), "ignore_eos": True},
        {"max_tokens": 200, "stop": ("bb",), "ignore_eos": True, "include_stop": True, "logprobs": 1},
    ],
)
def test_a_call_says_what_the_model_says_alone(options: dict[str, object]) -> None:
    one = call(**options)
    assert_as_expected(one, run(make_engine(), one)["a"])


@pytest.mark.parametrize(
    "places",
    [
        ("1,2,3", "4", "5", "6,7", "8"),
        ("1", "2", "3,4", "5,6"),
        ("1", "2", "3"),
        ("1,2", "3"),
        ("0,1,2,3,4,5,6,7,8,9",),
    ],
)
@pytest.mark.parametrize("options", [{}, {"logprobs": 1}, {"max_tokens": 2}, {"max_tokens": 2, "logprobs": 0}, {"max_tokens": 0}])
def test_a_grammar_is_held_and_its_forced_tokens_are_not_sampled(places: tuple[str, ...], options: dict[str, object]) -> None:
    one = call(constraint=Choice(places), n=2, prompt_logprobs=1, **options)
    got = run(make_engine(), one)["a"]
    assert_as_expected(one, got)
    assert isinstance(got.end, Completed)
    made = min(len(places), int(str(options.get("max_tokens", 12))))
    assert got.end.usage.forced_tokens == 2 * sum("," not in place for place in places[:made])


def test_stops_act_under_a_grammar_in_forced_text_too() -> None:
    for options in (
        {"stop": ("ef",)},
        {"stop_token_ids": (5,)},
        {"stop": ("ef",), "logprobs": 0},
        {"stop_token_ids": (4, 5), "logprobs": 1},
    ):
        one = call(constraint=Choice(("1,2", "3", "4", "5", "6,7")), **options)
        assert_as_expected(one, run(make_engine(), one)["a"])


def test_a_grammars_end_wins_over_min_tokens_and_ignore_eos() -> None:
    one = call(constraint=Choice(("1,2", "3,4")), min_tokens=9, ignore_eos=True)
    got = run(make_engine(), one)["a"]
    assert got.finished[0].reason == "stop" and len(got.tokens[0]) == 2


def test_healed_bytes_come_first_and_are_not_text() -> None:
    one = Call("a", PROMPT, SamplingParams(max_tokens=3, seed=1, ignore_eos=True), heal=b"cd")
    got = run(make_engine(), one)["a"]
    assert got.tokens[0][:2] == (2, 3)
    assert got.text[0] == text_of([token for token in got.tokens[0][2:] if token != EOS])
    plain = expect(Call("a", (*PROMPT, 2, 3), SamplingParams(max_tokens=3, seed=1, ignore_eos=True)), 0)
    assert got.tokens[0][2:] == tuple(plain.tokens)


@pytest.mark.parametrize("places", [None, ("1,4,5", "7", "9,8")])
@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("most", [0, 1, 2, 30])
def test_healed_tokens_cost_nothing_of_max_tokens(places: tuple[str, ...] | None, logprobs: int | None, most: int) -> None:
    constraint = Choice(places) if places else None
    sampling = SamplingParams(max_tokens=most, seed=1, ignore_eos=True, logprobs=logprobs, stop_token_ids=(2,))
    got = run(make_engine(), Call("a", PROMPT, sampling, constraint, heal=b"cd"))["a"]
    plain = run(make_engine(), Call("a", (*PROMPT, 2, 3), sampling, constraint))["a"]
    healed = (2, 3) if most else ()
    assert got.tokens.get(0, ()) == healed + plain.tokens.get(0, ())
    assert got.text.get(0, "") == plain.text.get(0, "")
    assert got.finished[0] == plain.finished[0]
    assert isinstance(got.end, Completed) and isinstance(plain.end, Completed)
    assert got.end.usage.forced_tokens == plain.end.usage.forced_tokens


def test_scores_are_aligned_and_every_token_is_computed_once() -> None:
    one = ScoreCall("s", PROMPT, ((1, 2, 3), (4,), (), (1, 2, 5), (6, 7), (1, 8, 9), (4,)))
    runner = ScriptedRunner()
    engine = make_engine(runner)
    got = run(engine, one)["s"]
    assert isinstance(got.end, Scored)
    assert_as_expected(one, got)
    computed = len(PROMPT) + 4  # 1, 1 2, 1 8 and 6 have tokens behind them
    assert engine.stats().computed_tokens == computed
    assert sum(plan.num_rows for plan in runner.plans) == 1 + 4  # each place once, whatever goes on from it
    usage = got.end.usage
    assert (usage.prompt_tokens, usage.prefilled_tokens) == (len(PROMPT) + 13, computed)
    assert usage.cached_tokens == usage.prompt_tokens - computed


def test_options_of_one_token_each_need_one_pass() -> None:
    one = ScoreCall("s", PROMPT, tuple((token,) for token in range(30)))
    runner = ScriptedRunner()
    engine = make_engine(runner)
    assert_as_expected(one, run(engine, one)["s"])
    assert len(runner.plans) == runner.plans[0].num_rows == 1
    assert engine.stats().computed_tokens == len(PROMPT)


def test_samples_share_the_prompt() -> None:
    engine = make_engine()
    got = run(engine, call(n=4, max_tokens=1))["a"]
    assert engine.stats().computed_tokens == len(PROMPT) + 3
    assert isinstance(got.end, Completed)
    assert (got.end.usage.cached_tokens, got.end.usage.prefilled_tokens) == (0, len(PROMPT))
    assert len({derive_seed(7, index) for index in range(100)}) == 100 and derive_seed(-1, 0) == 2**64 - 1


def test_a_second_call_reuses_prompt_and_output_to_the_token() -> None:
    engine = make_engine()
    first = run(engine, call(ignore_eos=True))["a"]
    longer = call("b", (*PROMPT, *first.tokens[0], 9, 9, 9))
    got = run(engine, longer)["b"]
    assert isinstance(got.end, Completed)
    assert got.end.usage.cached_tokens == len(PROMPT) + 11  # the last token was never computed
    assert_as_expected(longer, got)


def test_nothing_behind_a_stop_is_kept() -> None:
    engine = make_engine()
    sample = expect(call(max_tokens=30, ignore_eos=True), 0)
    stop = text_of(sample.tokens[10:12])
    first = run(engine, call(max_tokens=30, ignore_eos=True, stop=(stop,)))["a"]
    kept = len(first.tokens[0])
    assert kept < len(sample.tokens) and first.finished[0].stop == stop
    got = run(engine, call("b", (*PROMPT, *sample.tokens)))["b"]
    assert isinstance(got.end, Completed) and got.end.usage.cached_tokens == len(PROMPT) + kept


def test_namespaces_share_nothing() -> None:
    engine = make_engine()
    for namespace in ("x", "y"):
        got = run(engine, Call(namespace, PROMPT, SamplingParams(max_tokens=2), namespace=namespace))[namespace]
        assert isinstance(got.end, Completed) and got.end.usage.cached_tokens == 0


def test_flushed_prefixes_are_computed_again() -> None:
    engine = make_engine()
    run(engine, call())
    assert engine.flush_cache() > 0
    got = run(engine, call())["a"]
    assert isinstance(got.end, Completed) and got.end.usage.cached_tokens == 0


def test_without_the_cache_no_page_stays() -> None:
    engine = make_engine(radix_cache=False)
    one = call(n=3)
    assert_as_expected(one, run(engine, one)["a"])
    stats = engine.stats()
    assert (stats.pages_cached, stats.pages_held) == (0, 0)


@pytest.mark.parametrize(
    ("refused", "error", "words"),
    [
        (call(prompt=()), InvalidRequest, "at least one token"),
        (call(prompt=(1, VOCABULARY)), InvalidRequest, "got 40"),
        (call(prompt=(1, -1)), InvalidRequest, "got -1"),
        (call(stop_token_ids=(99,)), InvalidRequest, "stop_token_ids"),
        (call(prompt=(1,) * 60), CapacityError, "60 tokens and needs room for one more; the context holds 60"),
        (call(prompt=(1,) * 40), CapacityError, "40 tokens and needs room for one more; the KV pool holds 40"),
        (call(prompt_logprobs_start=11), InvalidRequest, "prompt_logprobs_start"),
        (ScoreCall("s", PROMPT, ()), InvalidRequest, "continuations"),
        (ScoreCall("s", PROMPT, ((1,), (41,))), InvalidRequest, "got 41"),
        (ScoreCall("s", PROMPT, ((1,), (1,) * 30)), CapacityError, "continuation 1 has 41 tokens"),
    ],
)
def test_what_can_not_be_served_is_refused_at_the_door(refused: Call | ScoreCall, error: type[Exception], words: str) -> None:
    engine = make_engine(ScriptedRunner(num_pages=10), context=60)
    with pytest.raises(error, match=words):
        engine.submit(refused)
    assert not engine.has_work and engine.step() == []


def test_a_prompt_that_only_just_fits_is_served() -> None:
    engine = make_engine(ScriptedRunner(num_pages=10))
    tight = call(prompt=(1,) * 39, max_tokens=None)
    assert_as_expected(tight, run(engine, tight)["a"], length=40)
    full = call("b", prompt=(1,) * 40, max_tokens=0)
    assert_as_expected(full, run(engine, full)["b"], length=40)


def test_a_live_id_is_refused_and_a_full_queue_says_so() -> None:
    engine = make_engine(max_queued=2)
    engine.submit(call("a"))
    with pytest.raises(InvalidRequest, match="still running"):
        engine.submit(call("a"))
    engine.submit(call("b"))
    with pytest.raises(Overloaded, match="max_queued=2"):
        engine.submit(call("c"))
    results = run(engine)
    assert all(isinstance(got.end, Completed) for got in results.values()) and len(results) == 2
    run(engine, call("a"))


def test_a_grammar_that_does_not_compile_costs_its_own_call_only() -> None:
    engine = make_engine()
    results = run(engine, call("bad", constraint=Choice(("oops",))), call("good"))
    failure = results["bad"].end
    assert isinstance(failure, Failed) and failure.kind == "invalid_request" and "oops" in failure.message
    assert_as_expected(call("good"), results["good"])


@pytest.mark.parametrize("verb", ["advance", "forced"])
def test_a_library_that_panics_costs_its_own_call_only(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: object) -> None:
        raise BaseException("panicked")  # what pyo3 raises derives from nothing narrower

    monkeypatch.setattr(ListMatcher, verb, panic)
    results = run(make_engine(), call("bad", constraint=Choice(("1,2", "3,4"))), call("good"))
    assert isinstance(results["bad"].end, Failed) and "panicked" in results["bad"].end.message
    assert isinstance(results["good"].end, Completed)


def test_a_call_takes_no_pages_before_its_grammar_is_there() -> None:
    compiler = ScriptedCompiler(at_once=False)
    engine = make_engine(compiler=compiler)
    one = call(constraint=Choice(("1,2", "3", "4,5")))
    engine.submit(one)
    assert engine.step() == [] and engine.stats().compiling == 1 and engine.stats().pages_held == 0
    engine.check()
    compiler.release()
    assert_as_expected(one, run(engine)["a"])


@pytest.mark.parametrize("steps", range(5))
def test_an_abort_frees_everything_at_once(steps: int) -> None:
    compiler = ScriptedCompiler(at_once=False)
    engine = make_engine(compiler=compiler, max_batch_tokens=6)
    engine.submit(call(n=2, constraint=Choice(("1,2",) * 9)))
    for _ in range(steps):
        engine.step()
        compiler.release()
    engine.abort("a")
    engine.abort("a")
    engine.abort("unknown")
    engine.check()
    assert engine.stats().pages_held == 0
    events = engine.step()
    assert [(type(event), event.kind) for event in events if isinstance(event, Failed)] == [(Failed, "aborted")]
    assert not engine.has_work
    run(engine, call("a"))


def test_a_fault_costs_the_calls_of_its_step_and_leaves_no_garbage() -> None:
    runner = ScriptedRunner()
    engine = make_engine(runner, max_sequences=2)
    for name in ("a", "b", "c"):
        engine.submit(call(name, (*PROMPT, ord(name) - 90)))
    engine.step()
    runner.fault = OSError("device lost")
    results = {}
    collect(engine.step(), results)
    engine.check()
    assert {name: type(got.end) for name, got in results.items()} == {"a": Failed, "b": Failed}
    assert "device lost" in results["a"].end.message and results["a"].end.kind == "internal"
    assert_as_expected(call("c", (*PROMPT, 9)), run(engine)["c"])
    again = [call(name, (*PROMPT, ord(name) - 90)) for name in ("a", "b")]
    for one, got in zip(again, run(engine, *again).values(), strict=True):
        assert_as_expected(one, got)


def test_broken_logits_cost_their_own_call_and_are_not_cached() -> None:
    engine = make_engine(ScriptedRunner(poison=frozenset({20})))
    results = run(engine, call("bad", (*PROMPT, 20)), call("good", (*PROMPT, 21)))
    failure = results["bad"].end
    assert isinstance(failure, Failed) and failure.kind == "internal" and "not numbers" in failure.message
    assert_as_expected(call("good", (*PROMPT, 21)), results["good"])
    assert isinstance(run(engine, ScoreCall("s", (20, 21), ((1,),)))["s"].end, Failed)


def test_a_matcher_that_breaks_costs_its_own_call_only() -> None:
    engine = make_engine()
    results = run(engine, call("bad", constraint=Choice(("1,2", "broken", "3,4"))), call("good"))
    failure = results["bad"].end
    assert isinstance(failure, Failed) and "cursor is broken" in failure.message
    assert_as_expected(call("good"), results["good"])


def test_fail_all_ends_every_call() -> None:
    engine = make_engine(max_sequences=1)
    for name in ("a", "b"):
        engine.submit(call(name))
    engine.step()
    events = engine.fail_all(EngineDead("The engine stops."))
    assert {(event.id, event.kind) for event in events if isinstance(event, Failed)} == {
        ("a", "engine_dead"),
        ("b", "engine_dead"),
    }
    engine.check()
    assert not engine.has_work and engine.stats().pages_held == 0
    engine.close()


def test_totals_add_up() -> None:
    engine = make_engine()
    results = run(engine, call("a"), call("b", n=2), ScoreCall("c", PROMPT, ((1, 2),)), call("d", constraint=Choice(("oops",))))
    totals = engine.stats().totals
    for name in ("prompt_tokens", "cached_tokens", "prefilled_tokens", "completion_tokens", "forced_tokens"):
        usages = [got.end.usage for got in results.values() if isinstance(got.end, Completed | Scored)]
        assert getattr(totals, name) == sum(getattr(usage, name) for usage in usages)
    assert totals.prompt_tokens == totals.cached_tokens + totals.prefilled_tokens
    assert (engine.stats().completed_calls, engine.stats().failed_calls) == (3, 1)


def test_a_call_without_a_limit_ends_with_the_context() -> None:
    one = call(max_tokens=None, ignore_eos=True)
    got = run(make_engine(ScriptedRunner(num_pages=200)), one)["a"]
    assert got.finished[0].reason == "length" and len(got.tokens[0]) == CONTEXT - len(PROMPT)


def test_what_a_preempted_call_computes_again_is_prefilled_on_top() -> None:
    runner = ScriptedRunner(num_pages=8)
    engine = make_engine(runner, policy="fcfs")
    calls = [call(name, (*PROMPT[:9], number), max_tokens=14, ignore_eos=True) for number, name in enumerate("abc")]
    results = run(engine, *calls)
    usages = [results[one.id].end.usage for one in calls]  # type: ignore[union-attr]
    assert sum(usage.preemptions for usage in usages) > 0
    for one in calls:
        assert_as_expected(one, results[one.id], 32)
    outputs = sum(usage.completion_tokens - 1 for usage in usages)  # the last token of each is never computed
    assert engine.stats().computed_tokens == sum(usage.prefilled_tokens for usage in usages) + outputs
