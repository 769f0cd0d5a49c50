"""The backend for OpenAI's API: against our own server, and against answers in OpenAI's form that are made up."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pydantic
import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import ScoreRequest
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Text
from branchpoint.runtime.process import EngineThread, build_engine
from branchpoint.runtime.serving.gateway import Loaded
from tests.lang.http_site import Site


@pytest.fixture(scope="module")
def engine() -> Iterator[bp.Engine]:
    loaded = build_engine(EngineConfig(model="dummy:llama", context_length=512, num_pages=128, threads=1, grammar_workers=1))
    with bp.Engine.around(EngineThread(loaded), loaded.tokenizer) as engine:
        yield engine


@pytest.fixture(scope="module")
def site(engine: bp.Engine) -> Iterator[Site]:
    site = Site(Loaded(engine.backend.client, engine.tokenizer, ("dummy",), 8))
    yield site
    site.close()


def served(site: Site, **options: Any) -> bp.OpenAI:
    return bp.OpenAI("dummy", "secret", f"{site.url}/v1", **({"dialect": "branchpoint"} | options))


@bp.function
def chosen(s: bp.State) -> str:
    s += "Say:" + bp.select("y", ["yes", "no", "nothing"])
    return s["y"]


def test_text_completions_say_what_the_engine_says(site: Site, engine: bp.Engine) -> None:
    written = bp.function(lambda s: s.__iadd__("Say:" + bp.gen("x", max_tokens=6) + bp.gen("z", regex="[a-z]{2,4}")) and None)
    with served(site, chat=False) as backend:
        run = written.run(backend=backend, temperature=0.0)
        there, here = chosen.run(backend=backend), chosen.run(backend=engine)
    assert run["x"] == engine.generate("Say:", max_tokens=6, temperature=0.0, heal=False).text
    assert re.fullmatch("[a-z]{2,4}", run["z"])
    assert run.meta("z").cached_tokens > 0
    assert there.value == here.value
    for one, other in zip(there.meta("y").choices, here.meta("y").choices, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.probability == pytest.approx(other.probability, abs=1e-4)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=4)
    age: Literal[1, 2, 3]


@bp.function
def asked(s: bp.State) -> list[object]:
    s += bp.system("Be short.") + bp.user("Who?")
    with s.fork(2) as (one, other):
        one += bp.assistant(bp.gen("person", Person))
        other += bp.assistant(bp.gen("n", int)) + bp.user("More") + bp.assistant(bp.gen("more", max_tokens=5, n=2))
    return [one["person"], other["n"], other["more"], other.messages()]


def test_a_chat_holds_values_to_their_types_and_keeps_the_conversation(site: Site) -> None:
    with served(site) as backend:
        person, n, more, messages = asked.run(backend=backend, temperature=0.5, seed=4).value
        again = asked.run(backend=backend, temperature=0.5, seed=4).value
    assert isinstance(person, Person)
    assert isinstance(n, int)
    assert len(more) == 2
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[2]["content"] == str(n)
    assert again[:2] == [person, n]


def test_an_error_of_the_server_has_status_and_body(site: Site) -> None:
    program = bp.function(lambda s: s.__iadd__("x" * 3000 + bp.gen("x")) and None)
    with served(site, chat=False) as backend, pytest.raises(bp.ProgramError, match=r"status 400.*maximum context") as caught:
        program.run(backend=backend)
    assert (caught.value.status, '"param":"prompt"' in caught.value.body) == (400, True)


def test_a_logprob_comes_with_its_bytes(site: Site) -> None:
    program = bp.function(lambda s: s.__iadd__("Say: " + bp.gen("x", max_tokens=2, return_logprob=True)) and None)
    with served(site, chat=False) as backend:
        meta = program.run(backend=backend, temperature=0.0).meta("x")
    assert len(meta.logprobs) == 2
    assert all(token.logprob is not None and token.logprob <= 0 for token in meta.logprobs)


# answers that are made up


def sse(*chunks: object) -> httpx.Response:
    data = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return httpx.Response(200, text="".join(f"data: {one}\n\n" for one in data), headers={"content-type": "text/event-stream"})


def said(text: str, reason: str = "stop", **more: object) -> httpx.Response:
    half = len(text) // 2
    pieces = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (text[:half], text[half:])]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason, **more}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    return sse(*pieces, end, {"choices": [], "usage": usage}, "[DONE]")


class Scripted:
    """A server of given answers, which keeps what it was asked."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]

    def backend(self, **options: Any) -> bp.OpenAI:
        return bp.OpenAI("model", "key", "http://server/v1", transport=httpx.MockTransport(self), **options)


def chat(*expressions: bp.Expr | str) -> "bp.Program[Any]":
    @bp.function
    def program(s: bp.State) -> None:
        s += bp.user("Hi")
        for expression in expressions:
            s += bp.assistant(expression)

    return program


def test_a_request_is_written_in_openais_form() -> None:
    server = Scripted(said("Hello", stop_reason="!"))
    program = chat(bp.gen("x", max_tokens=7, stop="!", temperature=0.5, top_p=0.9, frequency_penalty=0.1, logit_bias={5: 1.0}))
    run = program.run(backend=server.backend(headers={"X-Org": "o"}, body={"user": "u"}), seed=3)
    (body,), (request,) = server.bodies, server.requests
    assert request.url == "http://server/v1/chat/completions"
    assert (request.headers["authorization"], request.headers["x-org"]) == ("Bearer key", "o")
    assert body.pop("seed") == run.meta("x").seed
    assert body == {
        "model": "model",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 0.1,
        "logit_bias": {"5": 1.0},
        "stop": ["!"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
    }
    meta = run.meta("x")
    assert (run["x"], meta.stop, meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens) == ("Hello", "!", 9, 4, 3)
    assert run.text() == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"


def test_openai_itself_is_given_the_newer_name_of_the_limit() -> None:
    server = Scripted(said("Hello"))
    backend = bp.OpenAI("gpt-5", "key", transport=httpx.MockTransport(server))
    chat(bp.gen("x", max_tokens=7)).run(backend=backend)
    assert server.bodies[0]["max_completion_tokens"] == 7
    assert "max_tokens" not in server.bodies[0]


@pytest.mark.parametrize(
    ("wanted", "answer", "value", "sent"),
    [
        (int, '{"value": 42}', 42, {"type": "integer"}),
        (float, '{"value": 0.5}', 0.5, {"type": "number"}),
        (bool, '{"value": "true"}', True, {"type": "string", "enum": ["true", "false"]}),
        (Literal["a", "b"], '{"value": "b"}', "b", {"type": "string", "enum": ["a", "b"]}),
        (list[int], '{"value": [1, 2]}', [1, 2], {"type": "array", "items": {"type": "integer"}}),
        (bp.regex("[a-c]+"), '{"value": "abc"}', "abc", {"type": "string", "pattern": "^(?:[a-c]+)$"}),
    ],
)
def test_values_travel_in_an_object_and_come_out_of_it(wanted: object, answer: str, value: object, sent: object) -> None:
    server = Scripted(said(answer))
    run = chat(bp.gen("x", wanted)).run(backend=server.backend())
    form = server.bodies[0]["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"]["properties"]["value"] == sent
    assert run["x"] == value
    assert answer not in run.text()


def test_an_object_travels_as_it_is() -> None:
    server = Scripted(said('{"name": "Ada", "age": 2}'))
    assert chat(bp.gen("x", Person)).run(backend=server.backend())["x"] == Person(name="Ada", age=2)


@pytest.mark.parametrize("answer", ['{"value": "c"}', '{"other": 1}', "b", '{"name": "too long", "age": 2}'])
def test_an_answer_that_breaks_its_constraint_is_an_error(answer: str) -> None:
    wanted: Any = Person if "name" in answer else Literal["a", "b"]
    with pytest.raises(bp.ProgramError, match=r"asked for JSON|held to"):
        chat(bp.gen("x", wanted)).run(backend=Scripted(said(answer)).backend())


def test_a_value_that_was_cut_is_incomplete() -> None:
    run = chat(bp.gen("x", int)).run(backend=Scripted(said('{"value": 4', "length")).backend())
    with pytest.raises(bp.Incomplete) as caught:
        _ = run["x"]
    assert caught.value.partial == '{"value": 4'


def test_dialects_write_constraints_their_own_way() -> None:
    program = chat(bp.gen("x", regex="a+", top_k=3))
    vllm, sglang = Scripted(said("a")), Scripted(said("a"))
    program.run(backend=vllm.backend(dialect="vllm"))
    program.run(backend=sglang.backend(dialect="sglang"))
    assert vllm.bodies[0]["structured_outputs"] == {"regex": "a+"}
    assert sglang.bodies[0]["regex"] == "a+"
    assert vllm.bodies[0]["top_k"] == 3
    own = Scripted(said("{}"))
    schema = bp.json_schema({}, order="any", whitespace="flexible", strictness="stricter")
    chat(bp.gen("x", schema)).run(backend=own.backend(dialect="branchpoint"))
    asked = own.bodies[0]["structured_outputs"]
    assert asked == {"json": {}, "disable_any_whitespace": False, "order": "any", "strictness": "stricter"}


def test_an_answer_begun_by_the_program_goes_on_where_the_dialect_can() -> None:
    server = Scripted(said("42"))
    run = chat("It is " + bp.gen("x")).run(backend=server.backend(dialect="vllm"))
    assert server.bodies[0]["messages"][-1] == {"role": "assistant", "content": "It is "}
    assert (server.bodies[0]["continue_final_message"], server.bodies[0]["add_generation_prompt"]) == (True, False)
    assert run.messages()[-1]["content"] == "It is 42"


def test_samples_interleave() -> None:
    pieces = [{"choices": [{"index": index, "delta": {"content": text}}]} for index, text in ((1, "B"), (0, "A"), (1, "b"))]
    ends = [{"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]} for index in (1, 0)]
    run = chat(bp.gen("x", n=2)).run(backend=Scripted(sse(*pieces, *ends, "[DONE]")).backend())
    assert run["x"] == ["A", "Bb"]


def test_text_streams_as_it_comes() -> None:
    run = chat(bp.gen("x")).run(backend=Scripted(said("Hello")).backend(), stream=True)
    assert list(run.text_iter("x")) == ["He", "llo"]
    run.wait()


REFUSED: list[tuple[dict[str, Any], Callable[[bp.State], object], str]] = [
    ({}, lambda s: s.__iadd__("Hi" + bp.gen("x")), "outside of roles"),
    ({}, lambda s: s.__iadd__(bp.user("Hi") + bp.gen("x")), "outside of roles"),
    ({}, lambda s: s.__iadd__(bp.user("Hi" + bp.gen("x"))), "inside the role 'user'"),
    ({}, lambda s: s.__iadd__(bp.assistant(bp.gen("x"))), "needs a message"),
    ({}, lambda s: s.__iadd__(bp.user("Hi") + bp.assistant("It " + bp.gen("x"))), "can't begin with 'It '"),
    ({}, lambda s: s.__iadd__(bp.user("Hi") + bp.assistant(bp.gen("x", top_k=3))), "no option top_k"),
    ({}, lambda s: s.__iadd__(bp.user("Hi") + bp.assistant(bp.gen("x", ebnf='start: "a"'))), "can't hold output to a ebnf"),
    ({}, lambda s: s.__iadd__(bp.user("Hi") + bp.assistant(bp.gen("x", max_tokens=0))), "at least 1"),
    ({"chat": False}, lambda s: s.__iadd__(bp.user("Hi") + bp.assistant(bp.gen("x"))), "no roles"),
    ({"chat": False}, lambda s: s.__iadd__("Hi" + bp.gen("x", int)), "can't hold output to a regex"),
    ({"chat": False}, lambda s: s.__iadd__("Hi" + bp.select("x", ["a"], choices_method="total_with_end")), "doesn't tell"),
    ({"chat": False}, lambda s: s.__iadd__(bp.select("x", ["a"])), "first token"),
]


@pytest.mark.parametrize(("options", "body", "told"), REFUSED)
def test_what_the_api_cant_do_is_refused_before_anything_is_sent(
    options: dict[str, Any], body: Callable[[bp.State], object], told: str
) -> None:
    server = Scripted()
    with pytest.raises(bp.ProgramError, match=told) as caught:
        bp.function(lambda s: body(s) and None).run(backend=server.backend(**options))
    assert isinstance(caught.value.__cause__, bp.NotSupported)
    assert server.requests == []


async def test_a_chat_server_asked_directly_scores_nothing() -> None:
    server = Scripted()
    with pytest.raises(bp.NotSupported, match="doesn't score"):
        await server.backend().score(ScoreRequest("r", (Text("Hi"),), ("a", "b")))
    assert server.requests == []


def error(status: int, message: str = "no", headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "code": message}}, headers=headers)


SOON = {"retry-after-ms": "1"}


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_passing_failures_are_asked_again_as_the_server_says(status: int) -> None:
    server = Scripted(error(status, headers=SOON), httpx.ConnectError("refused"), said("Hello"))
    assert chat(bp.gen("x")).run(backend=server.backend())["x"] == "Hello"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        error(400),
        error(401),
        error(404),
        error(422),
        error(429, "insufficient_quota", SOON),
        error(429, headers={"retry-after": "600"}),
        error(500, headers={"x-should-retry": "false"}),
        httpx.ReadTimeout("silence"),
        httpx.RemoteProtocolError("gone"),
    ],
)
def test_nothing_is_asked_again_where_it_is_no_use_or_may_be_running(answer: httpx.Response | Exception) -> None:
    server = Scripted(answer)
    with pytest.raises(bp.ProgramError):
        chat(bp.gen("x")).run(backend=server.backend())
    assert len(server.requests) == 1


def test_tries_end() -> None:
    server = Scripted(*(error(429, "slow down", SOON) for _ in range(3)))
    with pytest.raises(bp.ProgramError, match="slow down") as caught:
        chat(bp.gen("x")).run(backend=server.backend(retries=2))
    assert caught.value.status == 429


async def _broken() -> AsyncIterator[bytes]:
    yield b'data: {"choices":[{"index":0,"delta":{"content":"He"}}]}\n\n'
    raise httpx.ReadError("reset")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (sse({"choices": [{"index": 0, "delta": {"content": "He"}}]}), "before the answer did"),
        (sse({"error": {"message": "overloaded", "code": 500}}), "overloaded"),
        (sse("<html>"), "no chunk"),
        (sse({"choices": [{"index": 0, "delta": {"refusal": "I won't"}}]}), "refused: I won't"),
        (said("He", "content_filter"), "content_filter"),
        (sse({"choices": [{"index": 7, "delta": {}}]}), "choice 7"),
        (httpx.Response(200, content=_broken()), "broke off"),
    ],
)
def test_an_answer_that_goes_wrong_fails_the_call_and_is_not_repeated(answer: httpx.Response, told: str) -> None:
    server = Scripted(answer)
    with pytest.raises(bp.ProgramError, match=told):
        chat(bp.gen("x")).run(backend=server.backend())
    assert len(server.requests) == 1


@pytest.mark.parametrize("ending", ["is never ended", "breaks off"])
def test_an_answer_is_whole_at_its_last_event_whatever_comes_after_it(ending: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield said("Hello").content + b'data: {"error": {"message": "too late"}}\n\n'
        if ending == "breaks off":
            raise httpx.ReadError("gone")
        await asyncio.sleep(3600)

    server = Scripted(httpx.Response(200, content=content()))
    run = chat(bp.gen("x")).run(backend=server.backend(timeout=60.0))
    assert (run["x"], run.meta("x").prompt_tokens) == ("Hello", 9)


def test_options_are_scored_in_requests_of_many() -> None:
    def echo(request: httpx.Request) -> httpx.Response:
        prompts = json.loads(request.content)["prompt"]
        sizes.append(len(prompts))
        told = {"tokens": ["Pick: ", "op", "tion"], "token_logprobs": [None, -1.0, -0.5], "text_offset": [0, 6, 8]}
        choices = [{"index": index, "text": prompt, "logprobs": told} for index, prompt in enumerate(prompts)]
        return httpx.Response(200, json={"choices": choices, "usage": {"prompt_tokens": len(prompts)}})

    sizes: list[int] = []
    backend = bp.OpenAI("m", "key", "http://server/v1", chat=False, transport=httpx.MockTransport(echo))
    options = [f"option {number}" for number in range(300)]
    program = bp.function(lambda s: s.__iadd__("Pick: " + bp.select("x", options)) and None)
    run = program.run(backend=backend)
    assert sorted(sizes) == [44, 256]
    assert run.meta("x").choices[299].logprobs == (-1.0, -0.5)
    assert run.meta("x").prompt_tokens == 300


def test_a_missing_key_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(InvalidRequest, match="OPENAI_API_KEY"):
        bp.OpenAI("gpt-5")


@bp.tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def _spell(text: str) -> str:
    """Spell."""
    return text


def called(arguments: str) -> httpx.Response:
    """A call in pieces, after some words."""
    half = len(arguments) // 2
    pieces: list[dict[str, Any]] = [
        {"content": "Let me see."},
        {"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in (arguments[:half], arguments[half:])),
        {"tool_calls": [{"index": 1, "function": {"name": "another", "arguments": "{}"}}]},
    ]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return sse(*({"choices": [{"index": 0, "delta": delta}]} for delta in pieces), end, "[DONE]")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_words_about_calls_are_words(reason: str) -> None:
    told = "Write <tool_call> before and </tool_call> after it."
    server = Scripted(said(told, reason))
    assert chat(bp.gen("x", tools=[add])).run(backend=server.backend())["x"] == told


def test_a_call_may_hold_the_marks_and_stand_behind_them() -> None:
    words = "<tool_call> </tool_call>"
    spell = bp.tool(_spell)
    pieces = [
        {"content": f"I call with {words}. "},
        {"tool_calls": [{"index": 0, "function": {"name": "_spell", "arguments": json.dumps({"text": words})}}]},
    ]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    server = Scripted(sse(*({"choices": [{"index": 0, "delta": delta}]} for delta in pieces), end, "[DONE]"), said("Done."))

    @bp.function
    def program(s: bp.State) -> None:
        s += bp.user("?") + bp.assistant(bp.gen("x", tools=[spell]))
        s += bp.tool(s["x"].run()) + bp.assistant(bp.gen("y"))

    run = program.run(backend=server.backend())
    assert (run["x"].arguments, run["y"]) == ({"text": words}, "Done.")
    _, said_there, answer = server.bodies[1]["messages"]
    assert said_there["content"] == f"I call with {words}."
    assert said_there["tool_calls"][0]["id"] == answer["tool_call_id"]
    assert json.loads(said_there["tool_calls"][0]["function"]["arguments"]) == {"text": words}


def test_a_call_that_is_wrong_or_cut_is_told() -> None:
    def answered(arguments: str, reason: str) -> httpx.Response:
        call = {"tool_calls": [{"index": 0, "function": {"name": "add", "arguments": arguments}}]}
        return sse({"choices": [{"index": 0, "delta": call, "finish_reason": reason}]}, "[DONE]")

    for arguments, reason, error in (('{"a": "x"}', "tool_calls", bp.ProgramError), ('{"a": 1', "length", bp.Incomplete)):
        run = chat(bp.gen("x", tools=[add])).run(backend=Scripted(answered(arguments, reason)).backend())
        with pytest.raises(error, match="add"):
            run["x"]


def test_a_call_that_no_tool_answers_is_sent_as_text() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    server = Scripted(said("So."))
    chat("As you wrote: " + text, bp.gen("x")).run(backend=server.backend(dialect="openai"))
    assert server.bodies[0]["messages"][1] == {"role": "assistant", "content": f"As you wrote: {text}"}


def test_tools_are_offered_and_called_in_the_apis_own_fields(tmp_path: Path) -> None:
    server = Scripted(called('{"a": 2, "b": 3}'), said("It is five."))

    @bp.function
    def agent(s: bp.State) -> str:
        s += bp.user("2+3?")
        return bp.use_tools(s, [add], tool_choice="required")

    run = agent.run(backend=server.backend())
    assert run.value == "It is five."
    first, second = server.bodies
    function = {"name": "add", "description": "Add two numbers.", "parameters": add.parameters}
    assert first["tools"] == second["tools"] == [{"type": "function", "function": function}]
    assert (first["tool_choice"], second["tool_choice"], first["parallel_tool_calls"]) == ("required", "auto", False)
    asked, call, answer = second["messages"]
    assert asked == {"role": "user", "content": "2+3?"} and call["content"] == "Let me see."
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 3}
    assert answer == {"role": "tool", "content": "5", "tool_call_id": call["tool_calls"][0]["id"]}
    assert "response_format" not in first and "stop" not in first
    run.save(tmp_path / "run.json")
    assert agent.run(backend=bp.replay(tmp_path / "run.json")).text() == run.text()


def test_a_call_of_a_tool_by_name_and_one_that_is_none() -> None:
    server = Scripted(called('{"a": 2}'), called('{"a": "two"}'), called('{"a": '))
    backend = server.backend()
    program = chat(bp.gen("x", tools=[add], tool_choice="add"))
    value = program.run(backend=backend)["x"]
    assert isinstance(value, bp.ToolCall) and value.run() == 3
    assert server.bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    for _ in range(2):
        run = program.run(backend=backend)
        with pytest.raises(bp.ProgramError, match="tool call"):
            run["x"]
