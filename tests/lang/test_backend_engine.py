"""The in-process backend: a real engine on small random weights, and a fake one where time or failures matter."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest, ScoreRequest
from branchpoint.runtime.errors import CapacityError, EngineDead, InvalidRequest, ModelError, UnknownModel
from branchpoint.runtime.messages import Call, Completed, Failed, Ids, ScoreCall, Text, Usage
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.weights.dummy import dummy_config
from tests.runtime.adapters import write_adapter
from tests.runtime.serving_fake import EOS, FakeEngine
from tests.runtime.serving_site import tokenizer


class Point(BaseModel):
    x: bool
    y: bool


@pytest.fixture(scope="module")
def real() -> Iterator[bp.Engine]:
    with bp.Engine("dummy:llama", context_length=256, num_pages=64, threads=1, seed=1, grammar_workers=1) as engine:
        yield engine


@pytest.fixture
def engine(real: bp.Engine) -> Iterator[bp.Engine]:
    yield real
    for _ in range(200):
        if (stats := real.stats()).running + stats.waiting == 0:
            break
    assert (stats.running, stats.waiting, stats.pages_held) == (0, 0, 0)


class Answering(FakeEngine):
    """As an engine does, it ends a call that is aborted."""

    def abort(self, call_id: str) -> None:
        super().abort(call_id)
        for held in [held for held in self.held if held[0].id == call_id]:
            self.held.remove(held)
            held[1](Failed(call_id, "aborted", "The call was aborted.", usage=Usage(prefilled_tokens=7, completion_tokens=5)))


@pytest.fixture
def fake() -> FakeEngine:
    return Answering()


@pytest.fixture
def around(fake: FakeEngine) -> Iterator[bp.Engine]:
    with bp.Engine.around(fake, tokenizer()) as engine:
        yield engine
    assert fake.closed


def until_held(fake: FakeEngine, count: int = 1) -> None:
    while len(fake.held) < count:
        threading.Event().wait(0.001)


# direct calls


def test_generate_gives_text_tokens_reason_and_counts(engine: bp.Engine) -> None:
    result = engine.generate("hello", max_tokens=6, ignore_eos=True)
    assert result.text == str(result) == engine.tokenizer.decode(result.tokens)
    assert (len(result.tokens), result.finish_reason, result.stop) == (6, "length", None)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (5, 6)


def test_texts_ids_and_segments_are_the_same_prompt(engine: bp.Engine) -> None:
    options = {"max_tokens": 5, "temperature": 0.0}
    ids = engine.tokenizer.encode("hello")
    results = [engine.generate(prompt, **options).tokens for prompt in ("hello", ids, (Text("hel"), Text("lo")))]  # type: ignore[call-overload]
    assert results[0] == results[1] == results[2]


def test_a_list_of_prompts_gives_a_list(engine: bp.Engine) -> None:
    alone = [engine.generate(text, max_tokens=4, seed=5).tokens for text in ("a", "b", "c")]
    assert [result.tokens for result in engine.generate(["a", "b", "c"], max_tokens=4, seed=5)] == alone
    ids = [engine.tokenizer.encode(text) for text in ("a", "b", "c")]
    assert [result.tokens for result in engine.generate(ids, SamplingParams(max_tokens=4, seed=5))] == alone


def test_samples_logprobs_and_stops(engine: bp.Engine) -> None:
    result = engine.generate("hello", {"max_tokens": 3, "n": 3, "return_logprob": True, "seed": 1, "ignore_eos": True})
    assert len({sample.tokens for sample in result.samples}) == 3
    assert [entry.token for entry in result.logprobs] == list(result.tokens)
    stopped = engine.generate("hello", max_tokens=9, temperature=0.0, stop_token_ids=[result.tokens[0]], min_tokens=0, seed=1)
    assert stopped.finish_reason in ("length", "stop")
    prompt = engine.generate("hello", max_tokens=1, return_logprob=True, logprob_start_len=0)
    assert len(prompt.prompt_logprobs) == 5


@pytest.mark.parametrize(
    ("held", "check"),
    [
        ({"regex": "[0-9]{4}"}, lambda text: text.isdecimal() and len(text) == 4),
        ({"choices": ["left", "right"]}, lambda text: text in ("left", "right")),
        ({"ebnf": 'start: "a" "b"+ "c"'}, lambda text: text[0] + text[-1] == "ac" and set(text[1:-1]) == {"b"}),
        ({"json_schema": {"enum": [1, 2]}}, lambda text: json.loads(text) in (1, 2)),
        ({"json_schema": '{"const": "x"}'}, lambda text: text == '"x"'),
        ({"json_schema": Point}, lambda text: isinstance(Point.model_validate_json(text), Point)),
        ({"constraint": bp.regex("a{3}")}, lambda text: text == "aaa"),
    ],
)
def test_output_is_held_to_what_is_asked(engine: bp.Engine, held: Any, check: Any) -> None:
    assert check(engine.generate("x", max_tokens=60, **held).text)


def test_pieces_of_a_stream_are_the_text(engine: bp.Engine) -> None:
    options: Any = {"max_tokens": 12, "seed": 3, "ignore_eos": True}
    whole = engine.generate("hello", **options).text
    assert "".join(engine.stream("hello", **options)) == whole

    async def read() -> str:
        return "".join([piece async for piece in engine.astream("hello", **options)])

    assert asyncio.run(read()) == whole


async def test_agenerate_runs_in_the_callers_loop(engine: bp.Engine) -> None:
    results = await asyncio.gather(*(engine.agenerate("hello", max_tokens=4, seed=seed) for seed in range(5)))
    again = await engine.agenerate(["hello"], max_tokens=4, seed=3)
    assert again[0].tokens == results[3].tokens


def test_healing_is_asked_for(engine: bp.Engine, around: bp.Engine, fake: FakeEngine) -> None:
    around.generate("hi", max_tokens=1)
    around.generate("hi", max_tokens=1, heal=True)
    plain, healed = fake.calls
    assert isinstance(plain, Call)
    assert isinstance(healed, Call)
    assert plain.heal == b""
    assert b"".join(map(around.tokenizer.token_bytes, healed.prompt)) + healed.heal == b"hi"


def test_a_rendered_chat_is_a_prompt(engine: bp.Engine) -> None:
    segments = engine.render([{"role": "user", "content": "hi"}])
    assert "".join(segment.text for segment in segments) == "user: hi\nassistant: "
    assert engine.generate(segments, max_tokens=1).usage.prompt_tokens == len(engine.tokenizer.encode_segments(segments))


@pytest.mark.parametrize(
    ("prompt", "options", "error", "told"),
    [
        ("", {}, InvalidRequest, "at least one token"),
        ([], {}, InvalidRequest, "list of token ids"),
        ([1.5], {}, InvalidRequest, "list of token ids"),
        ([True], {}, InvalidRequest, "list of token ids"),
        (None, {}, InvalidRequest, "list of token ids"),
        ([10**9], {}, InvalidRequest, "token ids in"),
        ("x" * 400, {}, CapacityError, "256"),
        ("x", {"temperature": -1}, InvalidRequest, "temperature"),
        ("x", {"max_tokens": "many"}, InvalidRequest, "wrong type"),
        ("x", {"heat": 1}, bp.ProgramMistake, "'heat' is not an option"),
        ("x", {"regex": "a", "choices": ["a"]}, InvalidRequest, "regex and choices"),
        ("x", {"regex": "((("}, InvalidRequest, "pattern"),
        ("x", {"choices": []}, InvalidRequest, "choices can't be"),
        ("x", {"sampling": SamplingParams(), "n": 2}, InvalidRequest, "both"),
    ],
)
def test_bad_calls_say_what_is_wrong(engine: bp.Engine, prompt: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        engine.generate(prompt, **options)
    assert engine.generate("still there", max_tokens=1).usage.completion_tokens <= 1


def test_one_bad_prompt_aborts_the_others(around: bp.Engine, fake: FakeEngine) -> None:
    fake.failure = ("capacity", "too long")
    with pytest.raises(CapacityError, match="too long"):
        around.generate(["a", "b"])
    assert fake.aborted == [fake.calls[1].id]


def test_a_stream_is_of_one_text(engine: bp.Engine) -> None:
    for prompt, options in ((["a", "b"], {}), ("a", {"n": 2})):
        with pytest.raises(InvalidRequest, match="one prompt and one sample"):
            engine.stream(prompt, **options)  # type: ignore[arg-type]


def test_leaving_a_stream_aborts_its_call(around: bp.Engine, fake: FakeEngine) -> None:
    stream = around.stream("hi", max_tokens=3)
    with closing(stream) as pieces:  # type: ignore[type-var]  # a generator, which can be closed
        assert next(pieces) == "a"
    assert fake.aborted == [fake.calls[0].id]


async def test_cancelling_aborts_the_call(around: bp.Engine, fake: FakeEngine) -> None:
    fake.hold = True
    waiting = asyncio.create_task(around.agenerate(["hi", "ho"]))
    while len(fake.held) < 2:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sorted(fake.aborted) == sorted(call.id for call in fake.calls)
    fake.release()  # what comes now is for nobody
    assert (await around.agenerate("hi", max_tokens=2)).text == "ab"


# life


def test_options_are_checked_and_models_must_be_there() -> None:
    for options, told in (({"pages": 3}, "pages"), ({"page_size": 0}, "page_size"), ({"page_size": "big"}, "page_size")):
        with pytest.raises(InvalidRequest, match=told):
            bp.Engine("dummy:llama", **options)
    with pytest.raises(ModelError, match="nowhere"):
        bp.Engine("nowhere")


def test_a_closed_engine_says_so(fake: FakeEngine) -> None:
    engine = bp.Engine("dummy:llama", context_length=64, num_pages=16, threads=1)
    threads = [thread for thread in threading.enumerate() if thread.name == "engine"]
    engine.close()
    engine.close()
    assert not any(thread.name == "engine" and thread not in threads for thread in threading.enumerate())
    with pytest.raises(EngineDead, match="closed"):
        engine.generate("x")
    with pytest.raises(bp.BackendError, match="closed"):
        bp.function(lambda s: s.__iadd__("x" + bp.gen("y")) and None).run(backend=engine)


async def test_an_engine_closes_in_an_event_loop_too(fake: FakeEngine) -> None:
    async with bp.Engine.around(fake, tokenizer()) as engine:
        assert (await engine.agenerate("hi", max_tokens=1)).text == "a"
    assert fake.closed


def test_facts_and_cache(engine: bp.Engine) -> None:
    engine.generate("some prefix that is kept", max_tokens=2)
    info = bp.get_server_info(engine)
    assert (info["name"], info["context_length"]) == ("dummy:llama", 256)
    assert info == engine.get_server_info()
    assert engine.stats().pages_cached > 0
    assert engine.flush_cache() > 0
    engine.generate("some prefix that is kept", max_tokens=2)
    bp.flush_cache(engine)
    assert engine.stats().pages_cached == 0


# programs


def test_a_program_reuses_what_it_generated(engine: bp.Engine) -> None:
    @bp.function
    def program(s: bp.State) -> str:
        s += "A prompt of some length: " + bp.gen("x", max_tokens=20, ignore_eos=True)
        s += bp.gen("y", max_tokens=4, ignore_eos=True)
        with s.fork(3) as branches:
            branches += lambda number: f" {number}: " + bp.gen("z", max_tokens=3, ignore_eos=True)
        return s.text()

    run = program.run(backend=engine, seed=7)
    assert run.value == program.run(backend=engine, seed=7).value
    first, second = run.meta("x"), run.meta("y")
    assert engine.tokenizer.encode(first.text) != list(first.tokens)  # a client that sends the text again sends other ids
    # the last token is never computed: nothing comes after it
    assert second.cached_tokens >= first.prompt_tokens + first.completion_tokens - 1
    assert len(run["z"]) == 3


def test_typed_values_come_out_of_a_real_grammar(engine: bp.Engine) -> None:
    @bp.function
    def program(s: bp.State) -> list[object]:
        s += "x" + bp.gen("n", int) + bp.gen("f", float) + bp.gen("b", bool) + bp.gen("p", Point) + bp.gen("l", list[bool])
        return [s["n"], s["f"], s["b"], s["p"], s["l"]]

    runs = program.run_batch([{}] * 5, backend=engine, config=bp.RunConfig(seed=3, temperature=1.5))
    for run in runs:
        assert list(map(type, run.value)) == [int, float, bool, Point, list]


def test_the_default_backend_may_be_an_engine(engine: bp.Engine) -> None:
    bp.set_default_backend(engine)
    try:
        program = bp.function(lambda s: s.__iadd__("x" + bp.gen("y", max_tokens=2)) and None)
        assert program.run().meta("y").completion_tokens <= 2
        assert program.run(config=bp.RunConfig(backend=engine))["y"] is not None
    finally:
        bp.set_default_backend(None)


def test_requests_reach_the_engine_whole(around: bp.Engine, fake: FakeEngine) -> None:
    program = bp.function(lambda s: s.__iadd__("ab" + bp.gen("x", max_tokens=2, regex="[a-z]*")) and None)
    run = program.run(backend=around, config=bp.RunConfig(namespace="mine"))
    (call,) = fake.calls
    assert isinstance(call, Call)
    assert (call.namespace, call.constraint, call.sampling.seed) == ("mine", bp.regex("[a-z]*"), run.meta("x").seed)
    assert b"".join(map(around.tokenizer.token_bytes, call.prompt)) + call.heal == b"ab"
    assert call.hints.program


def test_cancelling_a_run_aborts_its_calls(around: bp.Engine, fake: FakeEngine) -> None:
    fake.hold = True
    run = bp.function(lambda s: s.__iadd__("hi" + bp.gen("x")) and None).run(backend=around, stream=True)
    until_held(fake)
    run.cancel()
    with pytest.raises(bp.ProgramError, match="aborted"):
        run.wait()
    assert fake.aborted == [fake.calls[0].id]
    (record,) = run.report().records
    assert (record.wasted, record.usage.prefilled_tokens, run.report().total.wasted) == (True, 7, 5)


def test_a_failed_call_fails_its_line(around: bp.Engine, fake: FakeEngine) -> None:
    fake.failure, fake.late = ("engine_dead", "it is gone"), 2
    with pytest.raises(bp.ProgramError, match=r"gen 'x'.*it is gone") as caught:
        bp.function(lambda s: s.__iadd__("hi" + bp.gen("x")) and None).run(backend=around)
    assert isinstance(caught.value.__cause__, EngineDead)


def test_closing_fails_what_runs(fake: FakeEngine) -> None:
    engine = bp.Engine.around(fake, tokenizer())
    fake.hold = True
    run = bp.function(lambda s: s.__iadd__("hi" + bp.gen("x")) and None).run(backend=engine, stream=True)
    until_held(fake)
    engine.close()
    with pytest.raises(bp.ProgramError):
        run.wait()


async def test_a_burst_of_events_wakes_the_loop_once(around: bp.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    woken: list[object] = []
    post = loop.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> asyncio.Handle:
        woken.append(args)
        return post(*args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    results = await asyncio.gather(*(around.agenerate("hi", max_tokens=20) for _ in range(10)))
    assert [len(result.text) for result in results] == [20] * 10
    assert len(woken) <= 10  # 22 events came for each


# scores


def score(engine: bp.Engine, prompt: str, options: tuple[str, ...], **flags: Any) -> list[tuple[float, ...]]:
    request = ScoreRequest("s", (Text(prompt),), options, **flags)
    return list(engine.backend.dispatcher.run(engine.backend.score(request)).logprobs)


def test_scores_are_the_generated_tokens_own(engine: bp.Engine) -> None:
    made = engine.generate("score: ", regex="[a-z]{3}", temperature=0.0, logprobs=0)
    ids = tuple(engine.tokenizer.encode("score: "))
    known = engine.generate([*ids, *made.tokens], max_tokens=1, return_logprob=True, logprob_start_len=0)
    request = ScoreRequest("s", (Ids(ids),), (made.text,))
    (row,) = engine.backend.dispatcher.run(engine.backend.score(request)).logprobs
    assert len(row) == 3
    assert row == pytest.approx([entry.logprob for entry in known.prompt_logprobs[len(ids) :]], abs=1e-4)


def test_scores_with_end_and_unconditional(engine: bp.Engine) -> None:
    options = ("ab", "cde")
    plain = score(engine, "x: ", options)
    ended = score(engine, "x: ", options, with_end=True)
    assert [row[:-1] for row in ended] == [pytest.approx(row, abs=1e-4) for row in plain]
    bare = score(engine, "x: ", options, unconditional=True)
    assert bare == [pytest.approx(row, abs=1e-4) for row in score(engine, "something else", options, unconditional=True)]
    assert [len(row) for row in bare] == [len(row) for row in plain] == [2, 3]


def test_unconditional_scores_follow_the_beginning_alone(around: bp.Engine, fake: FakeEngine) -> None:
    score(around, "long prompt", ("ab",), unconditional=True, with_end=True)
    (call,) = fake.calls
    assert isinstance(call, ScoreCall)
    assert call.prompt == (around.tokenizer.beginning,)
    assert call.continuations == ((97, 98, EOS),)


async def test_long_prompts_are_tokenised_beside_the_loop(around: bp.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    prepare = around.tokenizer.prepare

    def watched(segments: Any, *, heal: bool) -> Any:
        names.append(threading.current_thread().name)
        return prepare(segments, heal=heal)

    monkeypatch.setattr(around.tokenizer, "prepare", watched)
    for length in (10, 20_000):
        events = around.backend.generate(GenerateRequest(f"id{length}", (Text("a" * length),)))
        assert isinstance([event async for event in events][-1], Completed)
    assert names[0] == threading.current_thread().name
    assert names[1].startswith("branchpoint-tokenize")


def test_the_engine_learns_when_a_program_has_ended(fake: FakeEngine, around: bp.Engine) -> None:
    @bp.function
    def two_calls(s: bp.State) -> None:
        s += "a" + bp.gen("x", max_tokens=2)
        s += "b" + bp.gen("y", max_tokens=2)

    two_calls.run(backend=around, config=bp.RunConfig(namespace="tenant"))
    names = {("tenant", call.hints.program) for call in fake.calls}
    assert fake.calls[0].hints.returns
    assert [*names] == fake.ended

    @bp.function
    def failing(s: bp.State) -> None:
        s += "a" + bp.gen("x", max_tokens=2)
        raise KeyError("mine")

    with pytest.raises(KeyError):
        failing.run(backend=around)
    assert len(fake.ended) == 2


def test_adapters_are_chosen_for_programs_and_direct_calls_and_come_and_go(tmp_path: Path) -> None:
    folders = [write_adapter(tmp_path / name, dummy_config("llama"), seed=seed) for seed, name in enumerate("abc")]

    @bp.function
    def say(s: bp.State) -> None:
        s += "Say: " + bp.gen("text", max_tokens=8, temperature=0.0, ignore_eos=True)

    with bp.Engine("dummy:llama", num_pages=64, threads=1, adapters={"a": str(folders[0])}) as engine:
        plain, own = say.run(backend=engine)["text"], say.run(backend=engine.adapter("a"))["text"]
        assert plain != own
        assert engine.generate("Say: ", max_tokens=8, temperature=0.0, ignore_eos=True, heal=True).text == plain
        with engine.adapter("a") as view:
            assert view.generate("Say: ", max_tokens=8, temperature=0.0, ignore_eos=True, heal=True).text == own
        engine.load_adapter("b", folders[1])
        with pytest.raises(InvalidRequest, match="'b' is loaded already"):
            engine.load_adapter("b", folders[2])
        with pytest.raises(InvalidRequest, match="must be a folder with adapter_config") as refused:
            engine.load_adapter("d", tmp_path / "nothing")
        assert refused.value.param == "lora_path"
        second = say.run(backend=engine.adapter("b"))["text"]
        engine.load_adapter("b", folders[2], replace=True)
        assert len({plain, own, second, say.run(backend=engine.adapter("b"))["text"]}) == 4
        engine.unload_adapter("b")
        with pytest.raises(bp.ProgramError, match="No adapter 'b' is loaded"):
            say.run(backend=engine.adapter("b"))
        with pytest.raises(UnknownModel, match="No adapter 'b' is loaded"):
            engine.unload_adapter("b")
        assert say.run(backend=engine)["text"] == plain
