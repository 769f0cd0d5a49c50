"""Requests and answers as HTTP: ids, headers, encodings, methods, paths."""

import gzip
import re
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.serving_site import Site, open_site, refusal


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


async def test_unknown_fields_are_told_in_a_header_where_the_server_is_not_strict() -> None:
    async with open_site(strict=False) as site:
        answer = await site.chat(temprature=1, zürich=2)
        assert answer.status_code == 200 and answer.headers["x-ignored-fields"] == r'temprature, "z\u00fcrich"'
        streamed = await site.chat(temprature=1, stream=True)
        assert streamed.headers["x-ignored-fields"] == "temprature" and streamed.text.endswith("[DONE]\n\n")
        assert "x-ignored-fields" not in (await site.chat()).headers
        refusal(await site.chat(best_of=3), 400, "best_of")


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(st.text(max_size=50), min_size=20, max_size=20))
async def test_whatever_an_unknown_field_is_called_its_name_can_stand_in_a_header(names: list[str]) -> None:
    async with open_site(strict=False) as site:
        for name in ("", "\x7f", "a, b", "\n", "😀" * 50, *names):
            answer = await site.http.post("/v1/completions", json={name: 1} | {"prompt": "hi"})
            assert answer.status_code == 200
            told = answer.headers.get("x-ignored-fields", "none")
            assert len(told) < 600 and re.fullmatch("[!-~]([ -~]*[!-~])?", told), told


async def test_every_answer_has_a_request_id_of_its_own_or_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "branchpoint.serving")
    async with open_site(api_keys=("k",)) as site:
        site.http.headers["x-api-key"] = "k"
        own = (await site.complete(temperature=9)).headers["x-request-id"]
        assert own.startswith("req_") and own in caplog.text
        assert (await site.complete(temperature=9, request_id="mine")).headers["x-request-id"] == "mine"
        for path in ("/v1/models", "/health", "/nowhere"):
            answer = await site.http.get(path, headers={"x-request-id": "theirs"})
            assert answer.headers["x-request-id"] == "theirs"
        stranger = await site.http.get("/v1/models", headers={"x-api-key": "wrong", "x-request-id": "x" * 129})
        assert stranger.status_code == 401 and stranger.headers["x-request-id"].startswith("req_")
        answered = await site.complete(request_id="own")
        assert answered.headers.get_list("x-request-id") == ["own"] and answered.json()["id"] == "own"


async def test_compressed_bodies_are_refused_by_name(site: Site) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = await site.http.post("/v1/completions", content=gzip.compress(b'{"prompt": "hi"}'), headers=headers)
    assert "gzip" in refusal(answer, 415)
    headers["content-encoding"] = "identity"
    assert (await site.http.post("/v1/completions", content=b'{"prompt": "hi"}', headers=headers)).status_code == 200


async def test_wrong_methods_name_the_right_ones(site: Site) -> None:
    for method, path, allowed in (
        ("GET", "/v1/completions", "POST"),
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/health", "GET"),
    ):
        answer = await site.http.request(method, path)
        assert method in refusal(answer, 405) and allowed in answer.headers["allow"]


async def test_generate_may_be_put_as_in_sglang(site: Site) -> None:
    assert (await site.http.put("/generate", json={"text": "hi"})).json()["text"].startswith("abc")


async def test_errors_of_a_path_have_the_body_that_its_clients_read(site: Site) -> None:
    assert (await site.http.get("/v1/messages")).json()["type"] == "error"
    assert "//v1/completions" in refusal(await site.http.post("http://server//v1/completions", json={"prompt": "hi"}), 404)


async def test_queries_that_cant_be_meant_are_named(site: Site) -> None:
    for path, param in (
        ("/v1/loads?format=prometheus", "format"),
        ("/flush_cache?timeout=-1", "timeout"),
        ("/cache?format=x", "format"),
    ):
        assert param in refusal(await site.http.request("POST" if "flush" in path else "GET", path), 400, param)
    assert (await site.http.get("/v1/loads?include=core,memory&format=json")).json()["loads"][0]["cache_hit_rate"] == 0


async def test_an_abort_that_names_nothing_ends_nothing(site: Site) -> None:
    for body in ({}, {"rid": ""}, {"rid": None}):
        refusal(await site.http.post("/abort_request", json=body), 400, "rid")
