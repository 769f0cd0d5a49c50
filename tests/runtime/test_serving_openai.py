"""OpenAI's routes over a fake engine: shapes, streams, usage, log-probabilities, and the calls that requests become."""

import json
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Narrowing, Regex, StructuralTag
from branchpoint.runtime.messages import Call
from tests.runtime.serving_site import Site, open_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


def call_of(site: Site) -> Call:
    call = site.engine.calls[-1]
    assert isinstance(call, Call)
    return call


def chunks_of(response: httpx.Response) -> list[dict]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = response.text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


async def test_chat_answers_in_openais_shape(site: Site) -> None:
    body = (await site.chat(max_tokens=2)).json()
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["model"] == "fake"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "ab", "refusal": None}
    assert choice["finish_reason"] == "length" and choice["stop_reason"] is None and choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 2 and usage["prompt_tokens_details"] == {"cached_tokens": 1}
    assert usage["total_tokens"] == usage["prompt_tokens"] + 2


async def test_chat_takes_the_models_defaults_and_the_rest_of_the_context(site: Site) -> None:
    await site.chat()
    sampling = call_of(site).sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.25, 0.5, None)
    await site.chat(temperature=1, top_p=0.9, max_tokens=9, max_completion_tokens=4, top_k=-1)
    sampling = call_of(site).sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.top_k) == (1.0, 0.9, 4, 0)


async def test_what_a_constraint_was_narrowed_to_is_told_where_it_was(site: Site) -> None:
    for narrowed in ((), (Narrowing("/items", "minitems", "nothing is written"),)):
        site.engine.narrowed = narrowed
        found = {"pointer": "/items", "keyword": "minitems", "how": "nothing is written"}
        told = {"narrowed": [found]} if narrowed else {}
        for answer in (await site.chat(max_tokens=2), await site.complete(max_tokens=2)):
            assert [choice.get("narrowed") for choice in answer.json()["choices"]] == [told.get("narrowed")]
        for answer in (await site.chat(max_tokens=2, stream=True), await site.complete(max_tokens=2, stream=True)):
            choices = [choice for chunk in chunks_of(answer) for choice in chunk["choices"]]
            assert [choice.get("narrowed") for choice in choices] == [None] * (len(choices) - 1) + [told.get("narrowed")]
        native = (await site.post("/generate", text="hi", sampling_params={"max_new_tokens": 2})).json()
        assert native["meta_info"].get("narrowed") == told.get("narrowed")


async def test_chat_stream_has_a_role_chunk_content_and_one_finish_for_each_choice(site: Site) -> None:
    chunks = chunks_of(await site.chat(stream=True, n=2, max_tokens=2))
    assert all(chunk["object"] == "chat.completion.chunk" and len(chunk["choices"]) == 1 for chunk in chunks)
    for index in range(2):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == "ab"
        assert [choice["finish_reason"] for choice in own] == [None, None, None, "length"]


async def test_stream_usage_comes_last_and_only_when_asked(site: Site) -> None:
    chunks = chunks_of(await site.chat(stream=True, max_tokens=2, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 2
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
    chunks = chunks_of(await site.chat(stream=True, max_tokens=2, stream_options={"continuous_usage_stats": True}))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 2]


async def test_chat_logprobs(site: Site) -> None:
    body = (await site.chat(max_tokens=1, logprobs=True, top_logprobs=2)).json()
    (entry,) = body["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -0.5, [97])
    assert [one["token"] for one in entry["top_logprobs"]] == ["a", "b"]
    chunks = chunks_of(await site.chat(max_tokens=1, logprobs=True, stream=True))
    assert chunks[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


async def test_completion_of_several_prompts_and_samples(site: Site) -> None:
    body = (await site.complete(prompt=["one", "two"], n=2, max_tokens=1)).json()
    assert body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "a"), (1, "a"), (2, "a"), (3, "a")]
    assert body["usage"]["prompt_tokens"] == 6 and body["usage"]["completion_tokens"] == 4
    assert len(site.engine.calls) == 2


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
async def test_completion_takes_token_ids(site: Site, prompt: object) -> None:
    assert (await site.complete(prompt=prompt)).status_code == 200
    assert call_of(site).prompt == (1, 2, 3) and call_of(site).sampling.max_tokens == 16


async def test_completion_default_length_shrinks_to_the_context(site: Site) -> None:
    assert (await site.complete(prompt="x" * 120)).status_code == 200
    assert call_of(site).sampling.max_tokens == 8


async def test_completion_echo_with_logprobs_scores_the_prompt(site: Site) -> None:
    body = (await site.complete(prompt="xyz", echo=True, max_tokens=1, logprobs=1)).json()
    (choice,) = body["choices"]
    assert choice["text"] == "xyza"
    assert choice["logprobs"]["tokens"] == ["x", "y", "z", "a"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert choice["logprobs"]["top_logprobs"][0] is None and choice["logprobs"]["top_logprobs"][3] == {"a": -2.0}
    body = (await site.complete(prompt="xyz", echo=True, max_tokens=0, logprobs=0)).json()
    assert body["choices"][0]["text"] == "xyz" and body["usage"]["completion_tokens"] == 0


async def test_completion_stream(site: Site) -> None:
    chunks = chunks_of(await site.complete(stream=True, echo=True, max_tokens=2, stream_options={"include_usage": True}))
    assert [choice["text"] for chunk in chunks for choice in chunk["choices"]] == ["hi", "a", "b", ""]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length" and chunks[-1]["choices"] == []


OBJECT = JsonSchema('{"type":"object"}')
CALLS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
    "triggers": ["<f"],
}
DIALECTS: list[tuple[dict[str, object], Constraint | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, OBJECT),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": None, "schema": {"type": "object"}}}},
        OBJECT,
    ),
    ({"structured_outputs": {"json": {"type": "object"}}}, OBJECT),
    ({"structured_outputs": {"json": '{"type":"object"}'}}, OBJECT),
    ({"structured_outputs": {"json_object": True}}, OBJECT),
    (
        {"structured_outputs": {"json": '{"type":"object"}', "order": "any", "disable_any_whitespace": False}},
        JsonSchema('{"type":"object"}', "flexible", order="any"),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "order": "any"}}},
        JsonSchema('{"type":"object"}', order="any"),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}, "strictness": "stricter"}}},
        JsonSchema('{"type":"object"}', strictness="stricter"),
    ),
    (
        {"structured_outputs": {"json": '{"type":"object"}', "strictness": "stricter"}},
        JsonSchema('{"type":"object"}', strictness="stricter"),
    ),
    (
        {"structured_outputs": {"structural_tag": json.dumps(CALLS), "strictness": "stricter"}},
        StructuralTag(json.dumps(CALLS), strictness="stricter"),
    ),
    ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Choice(("a", "b"))),
    ({"structured_outputs": {"grammar": "start: /a/"}}, Ebnf("start: /a/")),
    ({"structured_outputs": {"structural_tag": json.dumps(CALLS)}}, StructuralTag(json.dumps(CALLS))),
    ({"structured_outputs": {"structural_tag": CALLS}}, StructuralTag(msgspec.json.encode(CALLS).decode())),
    ({"response_format": CALLS}, StructuralTag(msgspec.json.encode(CALLS).decode())),
    ({"regex": "a+"}, Regex("a+")),
    ({"ebnf": "root ::= [a]"}, Ebnf("root ::= [a]")),
    ({"json_schema": '{"type":"object"}'}, OBJECT),
    ({"guided_json": {"type": "object"}}, OBJECT),
    ({"guided_regex": "a+"}, Regex("a+")),
    ({"guided_choice": ["a", "b"]}, Choice(("a", "b"))),
    ({"guided_grammar": "start: /a/"}, Ebnf("start: /a/")),
    ({"response_format": {"type": "text"}, "regex": "a+", "guided_json": None}, Regex("a+")),
]


@pytest.mark.parametrize(("fields", "constraint"), DIALECTS)
async def test_every_dialect_of_constraints(site: Site, fields: dict[str, object], constraint: Constraint | None) -> None:
    assert (await site.chat(**fields)).status_code == 200
    assert call_of(site).constraint == constraint
    assert (await site.complete(**fields)).status_code == 200
    assert call_of(site).constraint == constraint


async def test_whitespace_is_flexible_only_where_asked(site: Site) -> None:
    await site.chat(structured_outputs={"json_object": True, "disable_any_whitespace": False})
    assert call_of(site).constraint == JsonSchema('{"type":"object"}', whitespace="flexible")


async def test_users_text_never_becomes_a_special_token(site: Site) -> None:
    await site.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "<|end|>"}]}])
    assert 299 not in call_of(site).prompt and b"<|end|>" in bytes(call_of(site).prompt)


async def test_request_ids_are_the_callers_own(site: Site) -> None:
    assert (await site.chat(request_id="mine")).json()["id"] == "mine"
    answer = await site.http.post("/v1/completions", json={"prompt": "hi"}, headers={"x-request-id": "header"})
    assert answer.json()["id"] == "header" == answer.headers["x-request-id"]


async def test_models(site: Site) -> None:
    body = (await site.http.get("/v1/models")).json()
    assert [card["id"] for card in body["data"]] == ["fake", "alias"] and body["data"][0]["max_model_len"] == 128
    assert (await site.http.get("/v1/models/alias")).json()["id"] == "alias"
    assert (await site.http.get("/v1/models/other")).status_code == 404
    assert (await site.chat(model="alias")).json()["model"] == "fake"
