"""Anthropic's /v1/messages: blocks and events, tools, errors in its own body."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from branchpoint.constrained.spec import JsonSchema, Narrowing
from tests.runtime.serving_site import Site, open_site
from tests.server.test_tools import CALL, FIND, THINKS

TOOL = {"name": "find", "description": "Find a place.", "input_schema": FIND["function"]["parameters"]}
HI = {"max_tokens": 500, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(context=8192, template=THINKS) as ready:
        yield ready


async def ask(site: Site, **body: object) -> dict:
    answer = await site.post("/v1/messages", **(HI | body))
    assert answer.status_code == 200, answer.text
    return answer.json()


async def joined(site: Site, **body: object) -> dict:
    """The message that a stream's events make, put together as Anthropic's client does."""
    text = (await site.post("/v1/messages", **(HI | {"stream": True} | body))).text
    made: dict = {}
    for part in text.strip().split("\n\n"):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] == "message_start":
            made = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(made["content"])
            made["content"].append(dict(event["content_block"]))
            pieces = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            kind = delta["type"].removesuffix("_delta")
            if kind == "input_json":
                pieces += delta["partial_json"]
            else:
                made["content"][-1][kind] += delta[kind]
        elif event["type"] == "content_block_stop":
            if made["content"][-1]["type"] == "tool_use":
                made["content"][-1]["input"] = json.loads(pieces)
        elif event["type"] == "message_delta":
            made |= event["delta"] | {key: value for key, value in event.items() if key in ("usage", "narrowed")}
    assert event["type"] == "message_stop"
    return made


def without_ids(message: dict) -> dict:
    return {
        **{key: value for key, value in message.items() if key != "id"},
        "content": [{key: value for key, value in block.items() if key != "id"} for block in message["content"]],
    }


@pytest.mark.parametrize(
    ("say", "kinds", "reason"),
    [
        ("Hello", ["text"], "end_turn"),
        (f"I look.\n{CALL}", ["text", "tool_use"], "tool_use"),
        (f"{CALL}\n{CALL}\n", ["tool_use", "tool_use"], "tool_use"),
        ("<think>hm</think>\nYes", ["thinking", "text"], "end_turn"),
    ],
)
async def test_whole_and_streamed_are_the_same_blocks(site: Site, say: str, kinds: list[str], reason: str) -> None:
    site.engine.say = say
    whole = await ask(site, tools=[TOOL])
    assert [block["type"] for block in whole["content"]] == kinds and whole["stop_reason"] == reason
    assert whole["id"].startswith("msg_") and whole["role"] == "assistant" and whole["model"] == "fake"
    assert without_ids(await joined(site, tools=[TOOL])) == without_ids(whole)
    assert all(block["input"] == {"city": 'Zürich {"x"}'} for block in whole["content"] if block["type"] == "tool_use")


async def test_usage_tells_what_was_cached_apart(site: Site) -> None:
    usage = (await ask(site, max_tokens=3))["usage"]
    prompt = len(site.engine.calls[-1].prompt)
    assert usage == {
        "input_tokens": prompt - 1,
        "output_tokens": 3,
        "cache_read_input_tokens": 1,
        "cache_creation_input_tokens": 0,
    }
    assert (await ask(site, max_tokens=3))["stop_reason"] == "max_tokens"
    counted = await site.post("/v1/messages/count_tokens", messages=HI["messages"])
    assert counted.json() == {"input_tokens": prompt}


async def test_tool_choices_hold_the_output(site: Site) -> None:
    for choice, say in (
        ({"type": "any", "disable_parallel_tool_use": True}, '{"name":"find","arguments":{"city":"x"}}'),
        ({"type": "any"}, '[{"name":"find","arguments":{"city":"x"}}]'),
        ({"type": "tool", "name": "find"}, '{"city":"x"}'),
    ):
        site.engine.say = say
        message = await ask(site, tools=[TOOL], tool_choice=choice)
        assert message["content"][0]["input"] == {"city": "x"} and message["stop_reason"] == "tool_use"
        assert isinstance(site.engine.calls[-1].constraint, JsonSchema)


async def test_an_output_format_holds_the_output(site: Site) -> None:
    schema = {"type": "object", "properties": {}}
    await ask(site, output_config={"format": {"type": "json_schema", "schema": schema}})
    constraint = site.engine.calls[-1].constraint
    assert isinstance(constraint, JsonSchema) and json.loads(constraint.schema) == schema
    await ask(site, output_config={"format": {"type": "json_schema", "schema": schema, "strictness": "stricter"}})
    constraint = site.engine.calls[-1].constraint
    assert isinstance(constraint, JsonSchema) and constraint.strictness == "stricter"
    site.engine.narrowed = (Narrowing("/items", "minitems", "nothing is written"),)
    found = [{"pointer": "/items", "keyword": "minitems", "how": "nothing is written"}]
    assert (await ask(site))["narrowed"] == found == (await joined(site))["narrowed"]
    form = {"type": "json_schema", "schema": {}}
    for wrong in (
        {"format": form | {"type": "xml"}},
        {"format": {"type": "json_schema"}},
        {"format": form | {"x": 1}},
        {"effort": "low"},
    ):
        for path, body in (("/v1/messages", HI), ("/v1/messages/count_tokens", {"messages": HI["messages"]})):
            message = told(await site.post(path, **(body | {"output_config": wrong})), 400)["message"]
            assert message.startswith("output_config.") and "response_format" not in message


async def test_system_results_and_earlier_uses_reach_the_model(site: Site) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t", "name": "find", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "sunny"}, {"type": "text", "text": "so?"}],
        },
    ]
    await ask(
        site, messages=messages, system=[{"type": "text", "text": "Be brief."}], tools=[TOOL], stop_sequences=["x"], top_k=3
    )
    call = site.engine.calls[-1]
    prompt = bytes(call.prompt).decode()
    assert all(text in prompt for text in ("Be brief.", "weather?", "<tool_call>", "sunny", "so?", "Find a place."))
    assert call.sampling.stop == ("x",) and call.sampling.top_k == 3


def told(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"type", "error"} and body["type"] == "error" and set(body["error"]) == {"type", "message"}
    return body["error"]


async def test_errors_have_anthropics_body(site: Site) -> None:
    for body, word in (
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"nonsense": 1}, "nonsense"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "computer_20250124", "name": "c"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": {"type": "odd"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking"),
    ):
        error = told(await site.post("/v1/messages", **(HI | body)), 400)
        assert error["type"] == "invalid_request_error" and word in error["message"], error
    assert told(await site.post("/v1/messages", **(HI | {"model": "x"})), 404)["type"] == "not_found_error"
    assert told(await site.post("/v1/messages", messages=HI["messages"]), 400)["message"].startswith("max_tokens")
    site.engine.failure = ("overloaded", "Full.")
    assert told(await site.post("/v1/messages", **HI), 429)["type"] == "rate_limit_error"
    site.engine.failure, site.engine.late = ("internal", "It broke."), 1
    text = (await site.post("/v1/messages", **HI, stream=True)).text
    assert "event: error\n" in text and "It broke." in text and "[DONE]" not in text
    async with open_site(api_keys=("k",)) as keyed:
        assert told(await keyed.post("/v1/messages", **HI), 401)["type"] == "authentication_error"
