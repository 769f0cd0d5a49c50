"""The backend for Anthropic's Messages API, against a small server that speaks its documented stream of events."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import branchpoint as bp
from branchpoint.runtime.errors import InvalidRequest


class Service:
    """Answers as it is told; refuses what the real one refuses: another version, a wrong key, roles that don't exist."""

    def __init__(self, *answers: str | Response) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.tries = 0
        self.reason, self.sequence = "end_turn", None
        self.app = Starlette(routes=[Route("/v1/messages", self.messages, methods=["POST"])])

    async def messages(self, request: Request) -> Response:
        self.tries += 1
        if request.headers.get("x-api-key") != "key" or request.headers.get("anthropic-version") != "2023-06-01":
            return problem(401, "authentication_error", "invalid x-api-key")
        body = await request.json()
        if body.keys() < {"model", "max_tokens", "messages"} or body["messages"][0]["role"] != "user":
            return problem(400, "invalid_request_error", "messages: first message must use the user role")
        self.bodies.append(body)
        answer = self.answers.pop(0)
        return answer if isinstance(answer, Response) else self.stream(answer)

    def stream(self, text: str) -> Response:
        usage = {"input_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2, "output_tokens": 1}
        thinking = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}
        pieces = [text[at : at + 4] for at in range(0, len(text), 4)]
        deltas = [{"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": one}} for one in pieces]
        end = {"stop_reason": self.reason, "stop_sequence": self.sequence}
        return events(
            {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": usage}},
            thinking,
            {"type": "ping"},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            *deltas,
            {"type": "content_block_stop", "index": 1},
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        )

    def backend(self, **options: Any) -> bp.Anthropic:
        return bp.Anthropic("claude", **({"api_key": "key", "base_url": "http://service"} | options), transport=self.transport)

    @property
    def transport(self) -> httpx.ASGITransport:
        return httpx.ASGITransport(self.app)


def events(*events: dict[str, Any]) -> Response:
    lines = [f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n" for event in events]
    return Response("".join(lines), media_type="text/event-stream")


def problem(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"type": "error", "error": {"type": kind, "message": message}}, status, headers)


def chat(*expressions: bp.Expr) -> "bp.Program[Any]":
    @bp.function
    def program(s: bp.State) -> None:
        s += bp.system("Be short.") + bp.user("Hi")
        for expression in expressions:
            s += bp.assistant(expression)

    return program


def test_a_conversation_goes_over_in_its_form_and_comes_back_with_counts() -> None:
    service = Service("Hello there", "Bye")

    @bp.function
    def program(s: bp.State) -> None:
        s += (
            bp.system("Be short.") + bp.user("Hi") + bp.assistant(bp.gen("x", max_tokens=9, stop=["!"], temperature=0.0, top_k=4))
        )
        s += bp.user("Bye") + bp.assistant(bp.gen("y"))

    run = program.run(backend=service.backend(body={"cache_control": {"type": "ephemeral"}}))
    first, second = service.bodies
    assert first == {
        "model": "claude",
        "max_tokens": 9,
        "system": "Be short.",
        "messages": [{"role": "user", "content": "Hi"}],
        "stop_sequences": ["!"],
        "temperature": 0.0,
        "top_k": 4,
        "stream": True,
        "cache_control": {"type": "ephemeral"},
    }
    assert second["max_tokens"] == 8192
    assert [message["content"] for message in second["messages"]] == ["Hi", "Hello there", "Bye"]
    meta = run.meta("x")
    assert (run["x"], run["y"]) == ("Hello there", "Bye")
    assert (meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens) == (12, 3, 5)


@pytest.mark.parametrize(
    ("reason", "sequence", "finish"), [("end_turn", None, "stop"), ("stop_sequence", "!", "stop"), ("max_tokens", None, "length")]
)
def test_ends_are_told(reason: str, sequence: str | None, finish: str) -> None:
    service = Service("Hello")
    service.reason, service.sequence = reason, sequence  # type: ignore[assignment]  # one answer's end
    meta = chat(bp.gen("x")).run(backend=service.backend()).meta("x")
    assert (meta.finish_reason, meta.stop) == (finish, sequence)


@pytest.mark.parametrize(
    ("wanted", "answer", "value"),
    [(int, '{"value": 7}', 7), (Literal["a", "b"], '{"value": "a"}', "a"), (dict[str, int], '{"n": 1}', {"n": 1})],
)
def test_values_are_held_to_a_schema(wanted: object, answer: str, value: object) -> None:
    service = Service(answer)
    assert chat(bp.gen("x", wanted)).run(backend=service.backend())["x"] == value
    form = service.bodies[0]["output_config"]["format"]
    assert form["type"] == "json_schema"
    assert form["schema"]["type"] == "object"


def test_select_is_decoded_under_the_options() -> None:
    service = Service('{"value": "no"}')
    run = chat(bp.select("x", ["yes", "no"])).run(backend=service.backend())
    assert run["x"] == "no"
    assert run.meta("x").method == "mask"
    assert service.bodies[0]["output_config"]["format"]["schema"]["properties"]["value"]["enum"] == ["yes", "no"]
    assert run.messages()[-1] == {"role": "assistant", "content": "no"}


def test_an_answer_can_be_begun_by_the_program() -> None:
    service = Service("42")
    run = chat("It is:" + bp.gen("x")).run(backend=service.backend())
    assert service.bodies[0]["messages"][-1] == {"role": "assistant", "content": "It is:"}
    assert run.messages()[-1]["content"] == "It is:42"


REFUSED: list[tuple[dict[str, Any], Sequence[bp.Expr], str]] = [
    ({}, [bp.gen("x", n=2)], "no option n"),
    ({}, [bp.gen("x", min_p=0.1)], "no option min_p"),
    ({}, [bp.gen("x", return_logprob=True)], "no logprobs"),
    ({}, [bp.gen("x", ebnf='start: "a"')], "can't hold output to a ebnf"),
    ({}, ["It is: " + bp.gen("x")], "white space"),
    ({"prefill": False}, ["It is" + bp.gen("x")], "can't begin with"),
    ({}, [bp.select("x", ["a", "b"], choices_method="token_length_normalized")], "can't score options"),
]


@pytest.mark.parametrize(("options", "expressions", "told"), REFUSED)
def test_what_the_api_cant_do_is_refused_before_anything_is_sent(
    options: dict[str, Any], expressions: Sequence[bp.Expr], told: str
) -> None:
    service = Service()
    with pytest.raises(bp.ProgramError, match=told) as caught:
        chat(*expressions).run(backend=service.backend(**options))
    assert isinstance(caught.value.__cause__, bp.NotSupported)
    assert service.tries == 0


@pytest.mark.parametrize("role", [bp.system, bp.tool])
def test_roles_that_it_doesnt_have_are_refused(role: Callable[[str], bp.Expr]) -> None:
    program = bp.function(lambda s: s.__iadd__(bp.user("Hi") + role("?") + bp.assistant(bp.gen("x"))) and None)
    service = Service()
    with pytest.raises(bp.ProgramError, match="message here"):
        program.run(backend=service.backend())
    assert service.tries == 0


def test_overload_is_asked_again_and_an_error_says_what_it_was() -> None:
    soon = {"retry-after-ms": "1"}
    service = Service(
        problem(529, "overloaded_error", "Overloaded", soon), problem(429, "rate_limit_error", "slow", soon), "Hello"
    )
    assert chat(bp.gen("x")).run(backend=service.backend())["x"] == "Hello"
    assert service.tries == 3
    service = Service(problem(400, "invalid_request_error", "Prefill is not supported by this model."))
    with pytest.raises(bp.ProgramError, match=r"status 400.*Prefill is not supported") as caught:
        chat("It" + bp.gen("x")).run(backend=service.backend())
    assert (caught.value.status, service.tries) == (400, 1)


def test_a_wrong_key_is_a_401() -> None:
    with pytest.raises(bp.ProgramError, match="invalid x-api-key") as caught:
        chat(bp.gen("x")).run(backend=Service().backend(api_key="other"))
    assert caught.value.status == 401


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (events({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), "Overloaded"),
        (events({"type": "message_start", "message": {"usage": {"input_tokens": 1}}}), "before the answer did"),
        (events({"type": "message_delta", "delta": {"stop_reason": "refusal"}}), "refusal"),
        (Response("data: <html>\n\n"), "no event"),
    ],
)
def test_an_answer_that_goes_wrong_fails_the_call_and_is_not_repeated(answer: Response, told: str) -> None:
    service = Service(answer)
    with pytest.raises(bp.ProgramError, match=told):
        chat(bp.gen("x")).run(backend=service.backend())
    assert service.tries == 1


def test_a_missing_key_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with pytest.raises(InvalidRequest, match="ANTHROPIC_API_KEY"):
        bp.Anthropic("claude")


@bp.tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def called(arguments: str) -> Response:
    return events(
        {"type": "message_start", "message": {"usage": {"input_tokens": 7}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "add", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": arguments[:3]}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": arguments[3:]}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    )


def test_tools_are_offered_and_called_in_the_apis_own_blocks() -> None:
    service = Service(called('{"a": 2, "b": 3}'), called('{"a": 5}'), "It is six.")

    @bp.function
    def agent(s: bp.State) -> str:
        s += bp.user("2+3+1?")
        return bp.use_tools(s, [add], max_turns=2)

    with service.backend() as backend:
        assert agent.run(backend=backend).value == "It is six."
    first, second, third = service.bodies
    assert first["tools"] == [{"name": "add", "description": "Add two numbers.", "input_schema": add.parameters}]
    assert first["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    asked, call, answer = second["messages"]
    text, use = call["content"]
    assert (asked["content"], text["text"], use["input"]) == ("2+3+1?", "Let me see.", {"a": 2, "b": 3})
    assert answer == {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "5"}]}
    assert "tools" not in third and {type(message["content"]) for message in third["messages"]} == {str}
    assert [message["role"] for message in third["messages"]] == ["user", "assistant", "user", "assistant", "user"]
