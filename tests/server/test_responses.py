"""/v1/responses: items whole and event by event, tools, formats, what is kept and for whom."""

import json
from collections.abc import AsyncIterator

import pytest

from branchpoint.constrained.spec import JsonSchema, Narrowing, StructuralTag
from tests.runtime.serving_site import Site, open_site, refusal
from tests.server.test_tools import CALL, FIND, THINKS

TOOL = {"type": "function", **FIND["function"]}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(context=8192) as ready:
        yield ready


async def events(site: Site, **body: object) -> list[dict]:
    text = (await site.post("/v1/responses", **({"input": "hi", "stream": True} | body))).text
    ready = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        ready.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {ready[-1]['type']}"
    assert [event["sequence_number"] for event in ready] == list(range(len(ready)))
    return ready


def without_ids(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_ids(one) for key, one in value.items() if key not in ("id", "call_id", "created_at")}
    return [without_ids(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("say", ["Hello", f"Let me see. {CALL}", f"{CALL}\n{CALL}", f"<think>hm</think>{CALL} so"])
async def test_the_last_event_is_the_whole_response_and_deltas_make_its_items(say: str) -> None:
    async with open_site(template=THINKS, context=8192) as site:
        site.engine.say = say
        whole = (await site.post("/v1/responses", input="hi", tools=[TOOL])).json()
        told = await events(site, tools=[TOOL])
        assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
        assert told[-1]["type"] == "response.completed"
        final = told[-1]["response"]
        assert without_ids(final) == without_ids(whole)
        for place, item in enumerate(final["output"]):
            own = [event for event in told if event.get("output_index") == place]
            assert own[0]["type"] == "response.output_item.added" and own[-1]["type"] == "response.output_item.done"
            assert own[-1]["item"] == item and item["status"] == "completed"
            deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
            assert deltas == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


async def test_the_shape_of_a_response(site: Site) -> None:
    answer = (
        await site.post("/v1/responses", input="hi", instructions="Be short.", max_output_tokens=2, metadata={"a": "b"})
    ).json()
    assert answer["object"] == "response" and answer["id"].startswith("resp_") and answer["model"] == "fake"
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = answer["output"]
    assert item["role"] == "assistant" and item["content"] == [
        {"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}
    ]
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": 1} and usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert answer["metadata"] == {"a": "b"} and answer["instructions"] == "Be short."
    assert b"Be short." in bytes(site.engine.calls[-1].prompt)


async def test_formats_and_tools_become_constraints(site: Site) -> None:
    schema = {"type": "object", "properties": {}}
    for form, expected in (
        ({"type": "json_schema", "name": "x", "schema": schema, "strict": True}, schema),
        ({"type": "json_object"}, {"type": "object"}),
    ):
        assert (await site.post("/v1/responses", input="hi", text={"format": form})).status_code == 200
        constraint = site.engine.calls[-1].constraint
        assert isinstance(constraint, JsonSchema) and json.loads(constraint.schema) == expected
    form = {"type": "json_schema", "schema": schema, "order": "any", "strictness": "stricter"}
    assert (await site.post("/v1/responses", input="hi", text={"format": form})).status_code == 200
    constraint = site.engine.calls[-1].constraint
    assert isinstance(constraint, JsonSchema) and (constraint.order, constraint.strictness) == ("any", "stricter")
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
    assert (await site.post("/v1/responses", input="hi", text={"format": tag})).status_code == 200
    assert site.engine.calls[-1].constraint == StructuralTag(json.dumps(tag, separators=(",", ":")))
    site.engine.say = '{"city":"x"}'
    choice = {"type": "function", "name": "find"}
    answer = (await site.post("/v1/responses", input="hi", tools=[TOOL], tool_choice=choice)).json()
    assert [item["name"] for item in answer["output"]] == ["find"]


async def test_what_a_format_was_narrowed_to_is_told_where_it_was(site: Site) -> None:
    assert "narrowed" not in (await site.post("/v1/responses", input="hi")).json()
    site.engine.narrowed = (Narrowing("/items", "minitems", "nothing is written"),)
    told = [{"pointer": "/items", "keyword": "minitems", "how": "nothing is written"}]
    assert (await site.post("/v1/responses", input="hi")).json()["narrowed"] == told
    assert (await events(site))[-1]["response"]["narrowed"] == told


async def test_items_of_earlier_turns_are_understood(site: Site) -> None:
    given = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "find",
            "arguments": '{"city": "Bern"}',
            "id": "fc_1",
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "content": [{"type": "output_text", "text": "Sun.", "annotations": []}],
        },
    ]
    assert (await site.post("/v1/responses", input=given)).status_code == 200
    prompt = bytes(site.engine.calls[-1].prompt).decode()
    assert prompt.count("<tool_call>") == 2 and "sunny" in prompt and "Sun." in prompt and prompt.count("assistant:") == 3


async def test_a_response_goes_on_from_an_earlier_one(site: Site) -> None:
    first = (await site.post("/v1/responses", input="first question")).json()
    second = (await site.post("/v1/responses", input="second", previous_response_id=first["id"])).json()
    prompt = bytes(site.engine.calls[-1].prompt).decode()
    assert prompt.index("first question") < prompt.index("abc") < prompt.index("second")
    assert (await site.http.get(f"/v1/responses/{first['id']}")).json() == first
    assert (await site.http.delete(f"/v1/responses/{first['id']}")).json()["deleted"] is True
    refusal(await site.http.get(f"/v1/responses/{first['id']}"), 404)
    refusal(await site.post("/v1/responses", input="x", previous_response_id=first["id"]), 404, "previous_response_id")
    refusal(await site.http.post(f"/v1/responses/{second['id']}/cancel"), 400)
    unstored = (await site.post("/v1/responses", input="x", store=False)).json()
    refusal(await site.http.get(f"/v1/responses/{unstored['id']}"), 404)


async def test_only_so_many_are_kept_and_each_caller_sees_its_own() -> None:
    async with open_site(context=4096, max_stored_responses=2, api_keys=("a", "b")) as site:
        ids = [
            (await site.http.post("/v1/responses", json={"input": "x"}, headers={"x-api-key": "a"})).json()["id"]
            for _ in range(3)
        ]
        found = [(await site.http.get(f"/v1/responses/{one}", headers={"x-api-key": "a"})).status_code for one in ids]
        assert found == [404, 200, 200]
        assert (await site.http.get(f"/v1/responses/{ids[2]}", headers={"x-api-key": "b"})).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "image"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x", "temperature": 9}, "temperature"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {}, "order": "x"}}}, "text.format.order"),
        ({"input": "x", "text": {"format": {"type": "json_schema", "schema": {}, "shape": 1}}}, "text.format.shape"),
        ({"input": "x", "text": {"format": {"type": "structural_tag"}}}, "text.format"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": "x", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "nonsense": 1}, "nonsense"),
        ({"input": "x", "previous_response_id": "nope"}, "previous_response_id"),
    ],
)
async def test_what_cant_be_meant_is_named(site: Site, body: dict[str, object], param: str) -> None:
    told = refusal(await site.post("/v1/responses", **body), 404 if param == "previous_response_id" else 400, param)
    assert "response_format" not in told


async def test_failures_come_before_the_first_byte_or_as_an_event(site: Site) -> None:
    site.engine.failure = ("internal", "It broke.")
    refusal(await site.post("/v1/responses", input="x", stream=True), 500)
    site.engine.late = 1
    last = (await site.post("/v1/responses", input="x", stream=True)).text
    assert "event: error\n" in last and "It broke." in last and "[DONE]" not in last
