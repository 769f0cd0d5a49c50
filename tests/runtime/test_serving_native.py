"""SGLang's /generate and Branchpoint's own routes: shapes, batches, cumulative streams, events, scores, tokens, control."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from branchpoint.constrained.spec import JsonSchema, Regex
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import (
    Call,
    Completed,
    Delta,
    Event,
    Failed,
    Hints,
    Ids,
    SampleFinished,
    ScoreCall,
    Text,
    Usage,
)
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.serving_site import Site, open_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


async def generate(site: Site, **body: object) -> dict:
    response = await site.post("/generate", **({"text": "hi"} | body))
    assert response.status_code == 200, response.text
    return response.json()


def last_call(site: Site) -> Call:
    call = site.engine.calls[-1]
    assert isinstance(call, Call)
    return call


async def test_one_prompt_gives_one_object(site: Site) -> None:
    body = await generate(site, sampling_params={"max_new_tokens": 2}, rid="r")
    assert body["text"] == "ab" and body["output_ids"] == [97, 98]
    meta = body["meta_info"]
    assert meta["id"] == "r" and meta["finish_reason"] == {"type": "length", "length": 2}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (2, 2, 1)


async def test_defaults_are_sglangs_own(site: Site) -> None:
    await generate(site)
    assert last_call(site).sampling == SamplingParams(max_tokens=126)
    assert last_call(site).constraint is None


@pytest.mark.parametrize("prompts", [{"text": ["a", "b"]}, {"text": None, "input_ids": [[97], [98]]}])
async def test_a_list_gives_a_list(site: Site, prompts: dict[str, object]) -> None:
    body = await generate(site, **prompts, sampling_params={"max_new_tokens": 1})
    assert [one["text"] for one in body] == ["a", "a"]
    assert [call.prompt for call in site.engine.calls if isinstance(call, Call)] == [(97,), (98,)]


async def test_prefill_only(site: Site) -> None:
    options = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0}
    meta = (await generate(site, **options))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 104, None], [-1.0, 105, None]]
    assert meta["completion_tokens"] == 0 and meta["output_token_logprobs"] == []


async def test_logprobs_with_alternatives(site: Site) -> None:
    options = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}
    meta = (await generate(site, sampling_params={"max_new_tokens": 1}, **options))["meta_info"]
    assert meta["output_token_logprobs"] == [[-0.5, 97, "a"]]
    assert meta["output_top_logprobs"] == [[[-2.0, 97, "a"], [-3.0, 98, "b"]]]


def streamed(response: httpx.Response) -> list[dict]:
    assert response.status_code == 200, response.text
    parts = [part.removeprefix("data: ") for part in response.text.split("\n\n")]
    assert parts[-2:] == ["[DONE]", ""]
    return [json.loads(part) for part in parts[:-2]]


async def test_streamed_text_is_cumulative_and_the_last_object_has_every_count(site: Site) -> None:
    site.engine.hold = True
    asking = asyncio.create_task(site.post("/generate", text="hi", stream=True, sampling_params={"max_new_tokens": 2}))
    while not site.engine.held:
        await asyncio.sleep(0)
    call, on_event = site.engine.held[0]
    for place, text in enumerate("ab"):
        on_event(Delta(call.id, 0, text, (97 + place,)))
        await asyncio.sleep(0.005)
    on_event(SampleFinished(call.id, 0, "length"))
    await asyncio.sleep(0.005)
    on_event(Completed(call.id, Usage(prompt_tokens=2, cached_tokens=1, completion_tokens=2)))
    chunks = streamed(await asking)
    assert [chunk["text"] for chunk in chunks] == ["a", "ab", "ab"]
    assert [chunk["meta_info"]["finish_reason"] for chunk in chunks[:2]] == [None, None]
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert chunks[-1]["meta_info"]["cached_tokens"] == 1


async def test_what_a_slow_reader_missed_is_told_once(site: Site) -> None:
    options = {"sampling_params": {"max_new_tokens": 20, "n": 2}, "stream": True}
    chunks = streamed(await site.post("/generate", text=["hi", "ho"], **options))  # all events are there before the first is read
    assert [chunk["index"] for chunk in chunks] == [0, 1, 2, 3]
    assert {chunk["text"] for chunk in chunks} == {"abcdefghijklmnopqrst"}


async def test_each_prompt_of_a_list_may_have_options_of_its_own(site: Site) -> None:
    body = await generate(
        site,
        text=["a", "b"],
        sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2, "regex": "b"}],
        return_logprob=[False, True],
        logprob_start_len=[-1, 0],
        top_logprobs_num=[0, 1],
    )
    assert [one["text"] for one in body] == ["a", "ab"]
    assert ["output_top_logprobs" in one["meta_info"] for one in body] == [False, True]
    first, second = site.engine.calls
    assert isinstance(first, Call) and isinstance(second, Call)
    assert (first.constraint, second.constraint) == (None, Regex("b"))
    for wrong in (
        {"sampling_params": [{}]},
        {"sampling_params": [{}, {}, {}]},
        {"return_logprob": []},
        {"sampling_params": [{"n": 1}, {"n": 2}]},
    ):
        response = await site.post("/generate", text=["a", "b"], **wrong)
        assert response.status_code == 400 and response.json()["error"]["param"] == next(iter(wrong))
    assert (await site.post("/generate", text="a", sampling_params=[{}])).status_code == 400


async def test_special_tokens_are_parsed_in_raw_prompts(site: Site) -> None:
    await generate(site, text="a<|end|>b")
    assert last_call(site).prompt == (97, 299, 98)
    await site.complete(prompt="<|end|>b")
    assert last_call(site).prompt == (299, 98)
    for options in ({}, {"add_special_tokens": False}):
        assert (await site.post("/tokenize", prompt="a<|end|>b", **options)).json()["tokens"] == [97, 299, 98]
    await generate(site, text=None, segments=[{"type": "text", "text": "<|end|>"}])
    assert 299 not in last_call(site).prompt


async def test_several_constraints_or_prompts_are_refused(site: Site) -> None:
    for body in (
        {"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}},
        {"text": "a", "sampling_params": {"regex": "a"}, "constraint": {"type": "regex", "pattern": "b"}},
        {"text": "a", "input_ids": [1]},
        {"sampling_params": {}},
        {"input_ids": ["a"]},
        {"text": "a", "sampling": {}, "sampling_params": {}},
        {"text": "a", "sampling": {"temperature": -1}},
        {"text": "a", "sampling": {"heat": 1}},
        {"text": "a", "sampling_params": {"heat": 1}},
        {"text": "a", "constraint": {"type": "poem"}},
        {"text": "a", "events": True},
        {"segments": []},
        {"segments": [{"type": "ids", "tokens": [300]}]},
        {"segments": [{"type": "what"}]},
    ):
        response = await site.post("/generate", **body)
        assert response.status_code == 400 and response.json()["error"]["param"], (body, response.text)
    assert not site.engine.calls


async def test_the_languages_request_becomes_exactly_its_call(site: Site) -> None:
    segments = (Text("<|end|>", special=True), Text("<|end|>"), Ids((1, 2), "x"), Text("hi"))
    sampling = SamplingParams(temperature=0.5, stop=("a", "b"), logprobs=3, seed=7, logit_bias=((5, 1.5),))
    constraint = JsonSchema('{"type":"integer"}')
    hints = Hints(program="p", path=(0, 1), siblings=3, returns=True)
    body = {
        "segments": segments,
        "sampling": sampling,
        "constraint": constraint,
        "hints": hints,
        "cache_salt": "tenant",
        "rid": "own",
        "heal": True,
        "stream": True,
        "events": True,
    }
    answer = await site.http.post("/generate", content=msgspec.json.encode(body), headers={"content-type": "application/json"})
    assert answer.headers["content-type"] == "application/jsonl"
    decoder = msgspec.json.Decoder(Event)
    events = [decoder.decode(line) for line in answer.text.splitlines()]
    assert [type(event) for event in events] == [Delta, Delta, Delta, SampleFinished, Completed]
    assert events[0].logprobs[0].text == b"a"
    call = last_call(site)
    assert call.prompt == (299, *b"<|end|>", 1, 2, *b"hi")
    assert (call.sampling, call.constraint, call.hints, call.namespace) == (sampling, constraint, hints, "tenant")
    assert {event.id for event in events} == {"own"}


async def test_failures_among_events_are_the_runtimes_own(site: Site) -> None:
    site.engine.failure, site.engine.late = ("internal", "broke"), 1
    answer = await site.post("/generate", segments=[{"type": "text", "text": "a"}], stream=True, events=True)
    last = msgspec.json.decode(answer.text.splitlines()[-1], type=Event)
    assert isinstance(last, Failed) and (last.kind, last.message) == ("internal", "broke")


async def test_scores_are_aligned_with_the_options(site: Site) -> None:
    body = {"segments": [{"type": "text", "text": "x"}], "options": ["ab", "c"]}
    answer = (await site.post("/branchpoint/score", **body)).json()
    assert answer["logprobs"] == [[-1.0, -2.0], [-1.0]] and answer["usage"]["prompt_tokens"] == 1
    answer = (await site.post("/branchpoint/score", **body, with_end=True, unconditional=True)).json()
    assert answer["logprobs"] == [[-1.0, -2.0, -3.0], [-1.0, -2.0]]
    call = site.engine.calls[-1]
    assert isinstance(call, ScoreCall) and call.prompt == (299,) and call.continuations == ((97, 98, 299), (99, 299))
    for wrong in ({"options": []}, {"options": ["a", ""]}, {"options": ["x" * 200]}, {"surprise": 1}):
        assert (await site.post("/branchpoint/score", **(body | wrong))).status_code == 400


async def test_render(site: Site) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await site.post("/branchpoint/render", **body)).json() == {"prompt": "user: hi\nassistant: "}
    assert (await site.post("/branchpoint/render", **body, add_generation_prompt=False)).json() == {"prompt": "user: hi\n"}
    assert (await site.post("/branchpoint/render", messages=[])).status_code == 400


async def test_tokenize_and_back(site: Site) -> None:
    body = (await site.post("/tokenize", prompt="hi", return_token_strs=True)).json()
    assert body == {"tokens": [104, 105], "count": 2, "max_model_len": 128, "token_strs": ["h", "i"]}
    chat = (await site.post("/v1/tokenize", messages=[{"role": "user", "content": "hi"}])).json()
    assert bytes(chat["tokens"]) == b"user: hi\nassistant: "
    assert (await site.post("/detokenize", tokens=[104, 105])).json() == {"prompt": "hi", "text": "hi"}
    for wrong in ({}, {"prompt": "a", "messages": []}, {"prompt": 1}):
        assert (await site.post("/tokenize", **wrong)).status_code == 400
    assert (await site.post("/detokenize", tokens=[300])).status_code == 400


async def test_control(site: Site) -> None:
    info = (await site.http.get("/get_model_info")).json()
    assert info["served_model_name"] == "fake" and info["is_generation"] is True
    server = (await site.http.get("/get_server_info")).json()
    assert server["max_total_num_tokens"] == 1024 and server["internal_states"][0]["pages_free"] == 64
    assert (await site.http.post("/flush_cache")).status_code == 200 and site.engine.flushed == 1
    assert (await site.http.get("/version")).json()["version"]
    assert (await site.post("/abort_request", rid="unknown")).json() == {"aborted": 0}
    (one,) = (await site.http.get("/v1/loads")).json()["loads"]
    assert one["num_running_reqs"] == 0 and one["token_usage"] == 0
    assert (await site.http.get("/load")).json() == {"server_load": 0}


async def test_metrics_under_both_sets_of_names(site: Site) -> None:
    await site.complete(max_tokens=2)
    text = (await site.http.get("/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="fake"} 0.0' in text
    assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="fake"} 1.0' in text
    assert "sglang:num_running_reqs{" in text and "vllm:time_to_first_token_seconds_count" in text
    await site.complete(prompt="x" * 200)
    await site.complete(model="other")
    site.engine.failure = ("capacity", "no room")
    await site.complete()
    text = (await site.http.get("/metrics")).text
    for reason, count in {"capacity": 2, "invalid_request": 1, "overloaded": 0}.items():
        assert f'vllm:admission_rejections_total{{engine="0",model_name="fake",reason="{reason}"}} {count}.0' in text
    async with open_site(loaded=False) as loading:
        assert (await loading.http.get("/metrics")).status_code == 503


async def test_each_request_leaves_one_line_without_its_text(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="branchpoint.serving"):
        await site.complete(prompt="secret", request_id="one", max_tokens=2)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "branchpoint.serving"]
    assert line.startswith("one: model=fake calls=1/1 prompt=") and "completion=2 finish=length" in line and "secret" not in line


async def test_regex_reaches_the_engine_from_sampling_params(site: Site) -> None:
    await generate(site, sampling_params={"regex": "a+"})
    assert last_call(site).constraint == Regex("a+")


@pytest.mark.parametrize(
    ("hints", "told"),
    [
        ({"return_seconds": -1.0}, "return_seconds"),
        ({"siblings": 0}, "siblings"),
        ({"program": "p" * 257}, "at most 256 characters"),
        ({"ended": ["p", "p" * 257]}, "at most 256 characters"),
    ],
)
async def test_hints_that_make_no_sense_are_refused(site: Site, hints: dict[str, object], told: str) -> None:
    response = await site.post("/generate", text="hi", hints=hints)
    assert response.status_code == 400 and told in response.text
    await generate(site, hints={"program": "p" * 256, "return_seconds": 0.5})
    assert last_call(site).hints == Hints(program="p" * 256, return_seconds=0.5)


async def test_the_name_of_an_ended_program_has_bounds_too(site: Site) -> None:
    assert (await site.post("/branchpoint/end_program", program="p" * 257)).status_code == 400
    assert (await site.post("/branchpoint/end_program", program="p" * 256)).status_code == 200


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -0.1])
def test_a_return_that_is_no_time_is_refused_wherever_it_comes_from(seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="return_seconds"):
        Hints(return_seconds=seconds)
    with pytest.raises(msgspec.ValidationError, match="return_seconds"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"return_seconds": seconds}), type=Hints)
