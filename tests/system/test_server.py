"""A real server with a real model, asked by the official `openai` client and by plain HTTP."""

import enum
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import httpx
import jsonschema
import numpy as np
import openai
import pydantic
import pytest
from typer.testing import CliRunner

import branchpoint as bp
from branchpoint.cli import app
from tests.system.served import Served, served

KEY = "secret"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "visits": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "visits"],
    "additionalProperties": False,
}
REPEATED = ("Repeat exactly: <b>", "<b>", "Repeat exactly: <tool>", "<tool>", "Repeat after me: <tool_call>")
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    options = [
        "--api-key",
        KEY,
        "--served-model-name",
        "smol",
        "--context-length",
        "1024",
        "--num-pages",
        "256",
        "--threads",
        "1",
    ]
    with served(*options) as running:
        yield running.ready()


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60) as ready:
        yield ready


@pytest.fixture(scope="module")
def http(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as ready:
        yield ready


class Kind(enum.Enum):
    CITY = "city"
    RIVER = "river"


class Part(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    size: int | None


class Place(pydantic.BaseModel):
    kind: Kind
    side: Literal["left", "right"]
    parts: list[Part] = pydantic.Field(max_length=2)


def pages_held(http: httpx.Client) -> tuple[int, int]:
    """Pages that calls hold, and calls that run or wait."""
    state = http.get("/get_server_info").json()["internal_states"][0]
    return state["pages_held"], state["running"] + state["waiting"] + state["compiling"]


def test_chat_whole_and_streamed_are_the_same_text(client: openai.OpenAI) -> None:
    options = {"model": "smol", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**options)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop" and whole.usage is not None
    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None and usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens_details is not None and (usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_samples_seeds_stops_and_logprobs(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.chat.completions.create(model="smol", messages=QUESTION, n=3, seed=5, temperature=1.2, max_tokens=8)
        return [choice.message.content or "" for choice in answer.choices]

    first = texts()
    assert first == texts() and len(set(first)) > 1
    stopped = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, stop=[" is"], max_tokens=24)
    assert stopped.choices[0].message.content == "The capital of France" and stopped.choices[0].finish_reason == "stop"
    scored = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_tokens=2, logprobs=True, top_logprobs=3
    )
    assert scored.choices[0].logprobs is not None and scored.choices[0].logprobs.content is not None
    for entry in scored.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 3 and entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert bytes(entry.bytes or ()).decode() == entry.token


def test_json_schema_output_is_valid(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "trip", "strict": True, "schema": SCHEMA}}
    for seed in range(3):
        answer = client.chat.completions.create(
            model="smol", messages=QUESTION, response_format=form, temperature=1.3, seed=seed, max_tokens=64
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content or ""), SCHEMA)
        assert answer.choices[0].finish_reason == "stop"


def test_the_client_parses_pydantic_models_whole_and_streamed(client: openai.OpenAI) -> None:
    options = {"model": "smol", "messages": QUESTION, "response_format": Place, "temperature": 1.2, "max_tokens": 150, "seed": 4}
    whole = client.chat.completions.parse(**options).choices[0].message.parsed
    with client.chat.completions.stream(**options, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert isinstance(whole, Place) and final.choices[0].message.parsed == whole
    assert final.usage is not None and {"chunk", "content.delta", "content.done"} <= kinds
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**options | {"max_tokens": 5})


def test_calls_that_the_model_begins_by_itself_follow_their_schema_streamed_too(client: openai.OpenAI) -> None:
    days = {"type": "array", "items": {"enum": ["Monday", "Friday"]}, "minItems": 2, "uniqueItems": True}
    schema = SCHEMA | {"properties": SCHEMA["properties"] | {"days": days}, "required": ["city", "days"]}
    visit = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": schema}}
    said = [("user" if place % 2 == 0 else "assistant", text) for place, text in enumerate(REPEATED)]
    options = {"model": "smol", "messages": [{"role": role, "content": text} for role, text in said], "tools": [visit]}
    whole = client.chat.completions.create(**options, temperature=0, max_tokens=60).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.tool_calls
    arguments = [call.function.arguments for call in whole.message.tool_calls]
    for each in arguments:
        jsonschema.validate(json.loads(each), schema)
    streamed = [""] * len(arguments)
    for chunk in client.chat.completions.create(**options, temperature=0, max_tokens=60, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            streamed[call.index] += (call.function.arguments if call.function else None) or ""
    assert streamed == arguments


def test_streams_of_several_samples_interleave_and_each_ends_once(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smol", messages=QUESTION, n=3, stream=True, logprobs=True, top_logprobs=2, max_tokens=4, seed=3
    )
    texts, ends = {}, []
    for chunk in stream:
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        for entry in choice.logprobs.content or () if choice.logprobs else ():
            assert 2 <= len(entry.top_logprobs) <= 3
        ends += [choice.index] if choice.finish_reason else []
    assert sorted(ends) == [0, 1, 2] and all(texts.values())


def test_raw_prompts_may_be_rendered_chats(client: openai.OpenAI, http: httpx.Client) -> None:
    rendered = http.post("/branchpoint/render", json={"messages": QUESTION}).json()["prompt"]
    chat = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_tokens=12)
    raw = client.completions.create(model="smol", prompt=rendered, temperature=0, max_tokens=12)
    assert raw.choices[0].text == chat.choices[0].message.content
    native = http.post("/generate", json={"text": rendered, "sampling_params": {"temperature": 0, "max_new_tokens": 12}})
    assert native.json()["text"] == raw.choices[0].text
    assert raw.usage is not None and chat.usage is not None and raw.usage.prompt_tokens == chat.usage.prompt_tokens


def test_other_constraints(client: openai.OpenAI) -> None:
    def text(**extra: object) -> str:
        made = client.completions.create(model="smol", prompt="Answer: ", temperature=1.5, max_tokens=32, extra_body=extra)
        return made.choices[0].text

    assert re.fullmatch(r"[a-c]{3}-\d\d", text(regex=r"[a-c]{3}-\d\d"))
    assert text(structured_outputs={"choice": ["left", "right"]}) in {"left", "right"}
    assert text(guided_grammar='start: "yes" | "no"') in {"yes", "no"}
    answer = client.chat.completions.create(
        model="smol", messages=QUESTION, response_format={"type": "json_object"}, temperature=0, max_tokens=200
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_completions_with_echo_and_logprobs(client: openai.OpenAI) -> None:
    scored = client.completions.create(model="smol", prompt="The sky is blue", echo=True, max_tokens=0, logprobs=1)
    logprobs = scored.choices[0].logprobs
    assert scored.choices[0].text == "The sky is blue" and logprobs is not None
    assert "".join(logprobs.tokens or ()) == "The sky is blue"
    assert logprobs.token_logprobs is not None and logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    parts = client.completions.create(model="smol", prompt=["One, two,", [1, 2, 3]], max_tokens=4, temperature=0, stream=True)
    texts = {0: "", 1: ""}
    for part in parts:
        texts[part.choices[0].index] += part.choices[0].text
    assert "three" in texts[0] and texts[1]


def test_the_clients_errors_are_openais(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-x", messages=QUESTION)
    assert missing.value.param == "model" and missing.value.status_code == 404
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024") as long:
        client.completions.create(model="smol", prompt="word " * 2000)
    assert long.value.param == "prompt"
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model="smol", messages=QUESTION, tools=[{"type": "function", "function": {"parameters": {}}}]
        )
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert client.models.retrieve("smol").id == "smol"
    assert [model.id for model in client.models.list()] == ["smol"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"regex": "(unclosed"}, "regex"),
        ({"ebnf": "start: nothing"}, "ebnf"),
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": {"json": {"minimum": 2, "maximum": 1, "type": "integer"}}}, "structured_outputs.json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "banana"}}}},
            "response_format",
        ),
    ],
)
def test_a_bad_grammar_is_refused_before_the_first_byte(
    client: openai.OpenAI, extra: dict[str, object], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="smol", prompt="x", stream=stream, extra_body=extra)
    assert refused.value.param == param
    assert client.completions.create(model="smol", prompt="x", max_tokens=1).choices[0].text


def test_a_request_that_can_never_fit_the_pool_is_refused_with_numbers(http: httpx.Client) -> None:
    answer = http.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 10**6}})
    assert answer.status_code == 400 and "1024" in answer.json()["error"]["message"]


def test_native_route_and_scores(http: httpx.Client) -> None:
    body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    answer = http.post("/generate", json=body).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 4} and len(answer["output_ids"]) == 4
    scores = http.post(
        "/branchpoint/score", json={"segments": [{"type": "text", "text": "The sky is"}], "options": [" blue", " xylophone"]}
    ).json()
    assert sum(scores["logprobs"][0]) > sum(scores["logprobs"][1])
    tokens = http.post("/tokenize", json={"prompt": "The sky"}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "The sky"


def test_scores_ranks_and_prompt_logprobs_agree_with_what_the_model_knows(http: httpx.Client) -> None:
    documents = ["Bananas are yellow and sweet.", "Paris is the capital and largest city of France.", "Cats sleep all day."]
    body = {"query": "What is the capital of France?", "documents": documents}
    ranked = http.post("/v1/rerank", json=body).json()["results"]
    assert ranked[0]["index"] == 1 and 0 < ranked[-1]["relevance_score"] < ranked[0]["relevance_score"] < 1
    pair = {"text_1": "The capital of France is", "text_2": [" Paris", " banana"]}
    likely, unlikely = (each["score"] for each in http.post("/v1/score", json=pair).json()["data"])
    assert likely > 10 * unlikely
    body = {"prompt": "The capital of France is Paris", "prompt_logprobs": 2, "max_tokens": 1}
    last = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"][-1]
    (paris,) = [entry for entry in last.values() if entry["decoded_token"] == " Paris"]
    assert paris["logprob"] == pytest.approx(math.log(likely), abs=0.2)
    assert sorted(entry["rank"] for entry in last.values() if entry["rank"]) == [1, 2]


def test_the_client_gets_embeddings_of_like_texts_that_are_alike(client: openai.OpenAI) -> None:
    texts = ["The cat sleeps on the sofa.", "A cat is asleep on the couch.", "Interest rates rose by two percent."]
    for pooling in ("mean", "last"):
        answer = client.embeddings.create(model="smol", input=texts, extra_body={"pooling": pooling})  # it asks for base64
        one, like, other = (np.array(each.embedding) for each in answer.data)
        assert len(one) == 576 and np.linalg.norm(one) == pytest.approx(1, abs=1e-3)
        assert one @ like > one @ other, pooling
    short = client.embeddings.create(model="smol", input=texts[0], dimensions=64, encoding_format="float").data[0].embedding
    whole = client.embeddings.create(model="smol", input=texts[0], encoding_format="float").data[0].embedding
    cut = np.array(whole[:64])
    assert len(short) == 64 and short == pytest.approx((cut / np.linalg.norm(cut)).tolist(), abs=0.02)


PHASES: dict[str, dict[str, object]] = {
    "prefilling": {"prompt": [[place * 7 % 40_000 + row for place in range(1000)] for row in range(8)]},
    "decoding": {"prompt": "Once upon a time", "max_tokens": 900, "n": 4},
    "streaming": {"prompt": "Once upon a time", "max_tokens": 900, "n": 4, "stream": True},
    "queued": {"prompt": ["Once upon a time"] * 64, "max_tokens": 900, "n": 4},
}


@pytest.mark.parametrize("phase", list(PHASES))
def test_a_client_that_goes_gives_its_pages_back_within_a_second(server: Served, http: httpx.Client, phase: str) -> None:
    body = {"ignore_eos": True} | PHASES[phase]
    stream = "stream" in body
    headers = {"authorization": f"Bearer {KEY}"}
    began, seen = threading.Event(), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, headers=headers, timeout=20 if stream else 1.0) as short:
            try:
                with short.stream("POST", "/v1/completions", json=body) as answer:
                    for _ in answer.iter_lines():
                        began.set()
                        seen.wait(20)
                        return  # leaves, with the stream open
            except httpx.ReadTimeout:
                began.set()

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + 20
    while pages_held(http) == (0, 0):
        assert time.monotonic() < deadline, "the request never began"
        time.sleep(0.02)
    seen.set()
    assert began.wait(20)
    asking.join(20)
    gone = time.monotonic()
    while pages_held(http) != (0, 0):
        assert time.monotonic() < gone + 1, "its pages are still held"
        time.sleep(0.05)


def test_a_body_of_20_mb_costs_its_sender_a_400(http: httpx.Client) -> None:
    for body in (b'{"prompt": "' + b"a" * 20 * 2**20 + b'"}', b'{"prompt": [' + b"[1]," * 5 * 2**20 + b"[1]]}"):
        answer = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and len(answer.content) < 2000
    assert http.get("/health").status_code == 200


def test_many_different_clients_at_once(server: Served, http: httpx.Client) -> None:
    prompt = {"prompt": "Once upon a time", "max_tokens": 6}
    requests: list[tuple[str, dict[str, object], int]] = [
        ("/v1/completions", prompt, 200),
        ("/v1/completions", prompt | {"stream": True, "n": 2}, 200),
        ("/v1/completions", prompt | {"regex": "[ab]{3}"}, 200),
        ("/v1/completions", prompt | {"regex": "("}, 400),
        ("/v1/completions", prompt | {"model": "other"}, 404),
        ("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 4, "logprobs": True}, 200),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 3}, "return_logprob": True}, 200),
        ("/branchpoint/score", {"segments": [{"type": "text", "text": "The sky is"}], "options": [" blue", " red"]}, 200),
    ]

    def ask(number: int) -> None:
        path, body, status = requests[number % len(requests)]
        with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as own:
            answer = own.post(path, json=body)
        assert answer.status_code == status, answer.text
        assert "stream" not in body or answer.text.count('"finish_reason":"') == 2

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(ask, range(64)))
    assert pages_held(http) == (0, 0) and http.get("/load").json() == {"server_load": 0}


def test_the_doctor_sees_that_calls_wait(server: Served) -> None:
    stop = threading.Event()

    def load() -> None:
        body = {"ignore_eos": True} | PHASES["queued"] | {"stream": True}
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=60) as answer:
            for _ in answer.iter_lines():
                if stop.is_set():
                    return  # leaves, with the stream open

    loading = threading.Thread(target=load)
    loading.start()
    try:
        command = ["doctor", server.url, "--api-key", KEY, "--seconds", "2", "--looks", "4"]
        done = CliRunner().invoke(app, command)
    finally:
        stop.set()
        loading.join(30)
    assert done.exit_code == 0, done.output
    assert re.search(r"ran on average", done.output) and re.search(r"Calls wait (for pages|though)|are put back", done.output)
    assert CliRunner().invoke(app, ["doctor", "http://127.0.0.1:1"]).exit_code == 1


def test_openapi_names_every_route(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/generate", "/metrics", "/health", "/v1/models"} <= set(paths)


def test_the_cache_is_shown_with_its_text_and_why_it_is_not_shared_more(client: openai.OpenAI, http: httpx.Client) -> None:
    http.post("/flush_cache")
    rules = " ".join(f"Rule {number}: answer briefly." for number in range(12))
    for day in ("Monday", "Friday"):
        client.completions.create(model="smol", prompt=f"Today is {day}. {rules}", max_tokens=1)
    shown = http.get("/cache").json()
    texts = [node["text"] for node in shown["nodes"]]
    assert any(text.startswith("Today is") for text in texts) and shown["num_tokens"] > 100
    (lost,) = shown["lost_reuse"]
    assert "Friday" in lost["message"] and "Monday" in lost["message"] and lost["lost_tokens"] > 50
    assert "Today is" in http.get("/cache", params={"format": "text"}).text
    assert http.get("/cache", params={"format": "xml"}).status_code == 400
    url = str(http.base_url).rstrip("/")
    told = CliRunner().invoke(app, ["cache", "--url", url, "--api-key", KEY])
    assert told.exit_code == 0 and "Today is" in told.stdout and "Monday" in told.stdout
    assert httpx.get(f"{url}/cache").status_code == 401


def test_metrics_of_a_real_run_have_moved_and_hold_all_that_the_dashboard_plots(http: httpx.Client) -> None:
    constrained = {"model": "smol", "messages": QUESTION, "max_tokens": 40, "structured_outputs": {"json": SCHEMA}}
    before = series(http.get("/metrics").text)
    for _ in range(2):
        assert http.post("/v1/chat/completions", json=constrained).status_code == 200
    after = series(http.get("/metrics").text)
    gained = {name: after[name] - before[name] for name in after if name in before and after[name] != before[name]}
    for name in MOVED:
        assert gained[f"branchpoint:{name}"] > 0, name
    assert gained["branchpoint:request_success_total"] == gained["branchpoint:e2e_request_latency_seconds_count"] == 2
    assert gained["branchpoint:prompt_tokens_total"] == gained["vllm:prompt_tokens_total"] == gained["sglang:prompt_tokens_total"]
    dashboard = (Path(__file__).parents[2] / "docs/grafana-dashboard.json").read_text()
    plotted = set(re.findall(r"(?:branchpoint:|http_|process_)\w+", dashboard))
    assert len(plotted) > 30 and plotted <= after.keys()


MOVED = (
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_sum",
    "request_time_per_output_token_seconds_count",
    "request_queue_time_seconds_count",
    "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum",
    "generation_tokens_total",
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    "forced_tokens_total",
    "mask_seconds_total",
    "grammar_cache_hits_total",
    "grammar_compilation_time_seconds_count",
    "iteration_tokens_total_count",
    "request_params_max_tokens_sum",
)


def series(text: str) -> dict[str, float]:
    """The values of /metrics by name, summed over their labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.split("{")[0].split(" ")[0], line.rsplit(" ", 1)[1]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def test_s1_over_http_every_turn_reuses_all_but_four_tokens_of_the_one_before(server: Served, http: httpx.Client) -> None:
    """Also where the model made other ids than its text would be cut into."""

    @bp.function
    def talk(s: bp.State) -> None:
        s += bp.user("Invent some odd words.")
        for turn in range(5):
            s += bp.assistant(bp.gen(f"x{turn}", max_tokens=12)) + bp.user("More.")

    odd = 0
    with bp.RuntimeEndpoint(server.url, KEY) as endpoint:
        for seed in range(2):
            run = talk.run(backend=endpoint, seed=seed, temperature=3.0)
            metas = [run.meta(f"x{turn}") for turn in range(5)]
            for before, after in itertools.pairwise(metas):
                assert after.cached_tokens >= before.prompt_tokens + before.completion_tokens - 4
            odd += sum(encoded(http, meta.text) != list(meta.tokens) for meta in metas[:-1])
    assert odd > 0


def encoded(http: httpx.Client, text: str) -> list[int]:
    found: list[int] = (
        http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).raise_for_status().json()["tokens"]
    )
    return found
