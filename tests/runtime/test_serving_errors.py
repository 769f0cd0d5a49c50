"""What is refused, how, and when: statuses, bodies in OpenAI's form, nothing sent before, bounded echo, keys."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.runtime.serving_site import BASE, BOTH, Site, open_site, refusal

JSON = {"content-type": "application/json"}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


BROKEN = (
    b"",
    b"{",
    b"[1]",
    b'"text"',
    b"[" * 20_000 + b"]" * 20_000,
    b'{"messages":' * 20_000 + b"1" + b"}" * 20_000,
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "\\udc00 half"}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "hi", "temperature": NaN}',
    b'{"prompt": "hi", "temperature": 1e999}',
    b'{"prompt": "hi", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"prompt": [' + b"[]," * 2**18 + b"1]}",
)


async def test_broken_json_is_a_400(site: Site) -> None:
    for raw in BROKEN:
        for path in (*BASE, "/tokenize", "/abort_request"):
            long = len(raw) > 2**16 and path == "/abort_request"
            refusal(await site.http.post(path, content=raw, headers=JSON), 413 if long else 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
async def test_other_content_types_are_a_400(site: Site, kind: str | None) -> None:
    for path, body in (*BASE.items(), ("/abort_request", {"rid": "x"})):
        headers = {} if kind is None else {"content-type": kind}
        assert "Content-Type" in refusal(await site.http.post(path, content=json.dumps(body).encode(), headers=headers))


async def test_missing_fields_and_wrong_types_are_named(site: Site) -> None:
    refusal(await site.post("/v1/chat/completions"), param="messages")
    refusal(await site.post("/v1/completions"), param="prompt")
    refusal(await site.chat(messages="hi"), param="messages")
    refusal(await site.chat(messages=[]), param="messages")
    refusal(await site.chat(messages=[{"content": "hi"}]), param="messages[0].role")
    refusal(await site.chat(messages=[{"role": "robot", "content": "hi"}]), param="messages[0].role")
    refusal(await site.chat(messages=[{"role": "user"}]), param="messages[0].content")
    refusal(await site.chat(max_tokens="many"), param="max_tokens")
    refusal(await site.complete(prompt=7), param="prompt")
    refusal(await site.complete(prompt=[1, "two"]), param="prompt")
    refusal(await site.chat(stream_options={"include_usage": "yes"}), param="stream_options.include_usage")
    refusal(await site.chat(stream_options={"include_usage": True}), param="stream_options")
    refusal(
        await site.chat(stream=True, stream_options={"include_obfuscation": True}), param="stream_options.include_obfuscation"
    )
    picture = [{"type": "image_url", "image_url": {"url": "data:"}}]
    refusal(await site.chat(messages=[{"role": "user", "content": picture}]), param="messages[0].content[0].type")


RANGES: list[tuple[str, object]] = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("top_k", 2**70),
    ("min_p", 1.5),
    ("n", 0),
    ("n", 10**5),
    ("seed", 2**64),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("min_tokens", -1),
    ("min_tokens", 6),
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("max_tokens", 2**70),
    ("max_tokens", 100_000),
    ("logit_bias", {"300": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": 101}),
    ("stop_token_ids", [300]),
    ("stop_token_ids", [-1]),
    ("stop", ["x"] * 65),
    ("stop", [""]),
    ("cache_salt", "x" * 129),
    ("request_id", ""),
]


async def test_values_out_of_range_are_named(site: Site) -> None:
    for field, value in RANGES:
        for path in BOTH:
            refusal(await site.post(path, **(BASE[path] | {"max_tokens": 5} | {field: value})), param=field)
    assert not site.engine.calls


async def test_logprobs_out_of_range(site: Site) -> None:
    refusal(await site.chat(logprobs=True, top_logprobs=21), param="top_logprobs")
    refusal(await site.chat(top_logprobs=1), param="top_logprobs")
    refusal(await site.complete(logprobs=21), param="logprobs")
    refusal(await site.complete(logprobs=-1), param="logprobs")
    refusal(await site.complete(logprobs=1, echo=True, stream=True), param="echo")


async def test_unknown_model_is_a_404(site: Site) -> None:
    for path in BOTH:
        message = refusal(await site.post(path, **(BASE[path] | {"model": "gpt-x"})), 404, "model")
        assert "gpt-x" in message and "fake" in message


async def test_prompts_longer_than_the_context(site: Site) -> None:
    for response in (
        await site.complete(prompt="x" * 129),
        await site.complete(prompt="x" * 10**6),
        await site.complete(prompt="x" * 128),
    ):
        assert "maximum context length is 128 tokens" in refusal(response, param=response.json()["error"]["param"])
    message = refusal(await site.complete(prompt="x" * 120, max_tokens=9), param="max_tokens")
    assert "129 tokens" in message
    refusal(await site.chat(messages=[{"role": "user", "content": "x" * 10**6}]), param="messages")


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["x", ""]])
async def test_empty_prompts(site: Site, prompt: object) -> None:
    refusal(await site.complete(prompt=prompt), param="prompt")
    assert not site.engine.calls


@pytest.mark.parametrize("prompt", [[300], [-1], [2**70], [[1], [300]], [True]])
async def test_prompt_ids_out_of_the_vocabulary(site: Site, prompt: object) -> None:
    response = await site.complete(prompt=prompt)
    refusal(response, param=response.json()["error"]["param"])
    assert not site.engine.calls


@pytest.mark.parametrize(
    "fields",
    [
        {"regex": "a", "ebnf": "b"},
        {"response_format": {"type": "json_object"}, "guided_regex": "a"},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"structured_outputs": {}},
        {"structured_outputs": {"whitespace_pattern": " "}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        {"response_format": {"type": "structural_tag", "structures": []}},
        {"response_format": {"type": "banana"}},
        {"response_format": {}},
        {"guided_choice": []},
        {"structured_outputs": {"surprise": 1}},
        {"structured_outputs": {"regex": "a", "order": "any"}},
        {"structured_outputs": {"json": {}, "order": "some"}},
        {"structured_outputs": {"regex": "a", "strictness": "stricter"}},
        {"structured_outputs": {"json": {}, "strictness": "looser"}},
    ],
)
async def test_constraints_that_cant_be_meant(site: Site, fields: dict[str, object]) -> None:
    for path in BOTH:
        response = await site.post(path, **(BASE[path] | fields))
        refusal(response, param=response.json()["error"]["param"])
    assert not site.engine.calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status"),
    [("invalid_request", 400), ("capacity", 400), ("overloaded", 429), ("internal", 500), ("engine_dead", 500), ("aborted", 499)],
)
async def test_engine_refusals_come_before_the_first_byte(site: Site, stream: bool, kind: str, status: int) -> None:
    site.engine.failure = (kind, "no such luck")
    for path, body in BASE.items():
        response = await site.post(path, **(body | {"stream": stream}))
        assert refusal(response, status) == "no such luck"
        assert (response.headers.get("retry-after") is not None) == (status == 429)


async def test_an_error_after_the_first_byte_is_an_event_then_done(site: Site) -> None:
    site.engine.failure, site.engine.late = ("internal", "broke"), 2
    for path in BOTH:
        response = await site.post(path, **(BASE[path] | {"stream": True}))
        assert response.status_code == 200
        *_, last, done, rest = response.text.split("\n\n")
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["message"] == "broke" and error["code"] == 500
        assert (done, rest) == ("data: [DONE]", "")
        refusal(await site.post(path, **BASE[path]), 500)


async def test_one_failing_prompt_fails_the_request_and_ends_the_others(site: Site) -> None:
    site.engine.failure = ("invalid_request", "bad")
    refusal(await site.complete(prompt=["a", "b", "c"]))
    assert {call.id for call in site.engine.calls} == {*site.engine.aborted, site.engine.calls[0].id}


async def test_echo_is_bounded(site: Site) -> None:
    long = "x" * 10_000
    refusal(await site.chat(**{long: 1}), param=long[:79] + "…")
    refusal(await site.chat(model=long), 404, "model")
    refusal(await site.chat(response_format={"type": long}), param="response_format.type")
    refusal(await site.complete(prompt=[[1], [long]]), param="prompt[1]")
    refusal(await site.http.get("/" + long), 404)


async def test_a_body_that_is_too_long(site: Site) -> None:
    async with open_site(max_body_bytes=1000) as small:
        refusal(await small.complete(prompt="x" * 2000), 413)

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b" " * 500

        refusal(await small.http.post("/v1/completions", content=parts(), headers=JSON), 413)


async def test_paths_and_methods(site: Site) -> None:
    refusal(await site.http.get("/v1/audio/speech"), 404)
    refusal(await site.http.get("/v1/chat/completions"), 405)


async def test_keys(site: Site) -> None:
    async with open_site(api_keys=("one", "two")) as guarded:
        for headers in ({}, {"authorization": "Bearer three"}, {"authorization": "one"}, {"authorization": "Basic one"}):
            for path in ("/v1/models", "/tokenize", "/generate", "/flush_cache", "/v1/chat/completions", "/nowhere", "//health"):
                response = await guarded.http.get(f"http://server{path}", headers=headers)
                refusal(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
        assert (await guarded.http.get("/health")).status_code == 200
        for key in ("one", "two"):
            assert (await guarded.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code == 200


async def test_a_server_that_is_not_ready_says_so(site: Site) -> None:
    async with open_site(loaded=False) as loading:
        response = await loading.chat()
        refusal(response, 503)
        assert response.headers["retry-after"]
        assert (await loading.http.get("/health")).status_code == 503
        assert (await loading.http.get("/livez")).status_code == 200
    await site.gateway.drain(1)
    response = await site.chat()
    refusal(response, 503)
    assert response.headers["connection"] == "close"
    assert (await site.http.get("/readyz")).json() == {"status": "draining"}


async def test_duplicate_ids_of_live_requests_are_refused(site: Site) -> None:
    site.engine.hold = True
    first = asyncio.create_task(site.chat(request_id="same"))
    while not site.engine.calls:
        await asyncio.sleep(0)
    refusal(await site.chat(request_id="same"), param="request_id")
    site.engine.release()
    assert (await first).status_code == 200


async def test_a_bug_is_a_500_without_a_trace(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.gateway, "check_model", lambda _name: 1 / 0)
    message = refusal(await site.chat(), 500)
    assert "Traceback" not in message and "division" not in message
