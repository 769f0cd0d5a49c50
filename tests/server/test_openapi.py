"""The OpenAPI document is the truth: references lead somewhere, and each answer is one of those that it names."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.runtime.serving_site import Site, open_site
from tests.server.told import as_told, document

GOOD: dict[str, list[dict[str, object]]] = {
    "/v1/chat/completions": [{"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "n": 2}],
    "/v1/completions": [{"prompt": ["a", "b"], "logprobs": 1}],
    "/v1/responses": [{"input": "hi"}],
    "/v1/messages": [{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}],
    "/v1/messages/count_tokens": [{"messages": [{"role": "user", "content": "hi"}]}],
    "/generate": [{"text": "hi"}, {"text": ["a", "b"]}, {"text": "hi", "events": True}],
    "/v1/embeddings": [{"input": ["a", "b"]}, {"input": "a", "encoding_format": "base64"}],
    "/v1/score": [{"text_1": "a", "text_2": ["b", "c"]}, {"query": "a", "items": ["b"], "label_token_ids": [1]}],
    "/score": [{"text_1": "a", "text_2": "b"}],
    **{key: [{"query": "q", "documents": ["a", "b"]}] for key in ("/v1/rerank", "/rerank", "/v2/rerank")},
    "/branchpoint/score": [{"segments": [{"type": "text", "text": "x"}], "options": ["a"]}],
    "/branchpoint/render": [{"messages": [{"role": "user", "content": "hi"}]}],
    "/branchpoint/end_program": [{"program": "p"}],
    **{key: [{"prompt": "hi"}, {"prompt": "hi", "return_token_strs": True}] for key in ("/tokenize", "/v1/tokenize")},
    **{key: [{"tokens": [97]}] for key in ("/detokenize", "/v1/detokenize")},
    **{key: [{"abort_all": True}] for key in ("/abort", "/abort_request")},
    **{key: [{}] for key in ("/flush_cache", "/reset_prefix_cache")},
    **{key: [{"lora_name": key, "lora_path": "."}] for key in ("/load_lora_adapter", "/v1/load_lora_adapter")},
    "/unload_lora_adapter": [{"lora_name": "/load_lora_adapter"}],
    "/v1/unload_lora_adapter": [{"lora_name": "/v1/load_lora_adapter"}],
}
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(lora_dirs=(str(tmp_path),)) as ready:
        yield ready


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from references(item)


async def test_references_lead_to_schemas_and_every_body_has_one(site: Site) -> None:
    told = await document(site)
    schemas = told["components"]["schemas"]
    found = set(references(told))
    assert len(found) > 20 and {name.removeprefix("#/components/schemas/") for name in found} <= set(schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for path, body in ((path, one) for path, bodies in GOOD.items() for one in bodies if one):
        (reference,) = references(told["paths"][path]["post"]["requestBody"])
        jsonschema.validate(body, {"$ref": reference, "components": told["components"]})
    assert not re.search(r'"422"|HTTPValidationError', json.dumps(told))


async def test_answers_have_the_status_type_and_shape_that_are_told(site: Site) -> None:
    told = await document(site)
    for path, bodies in GOOD.items():
        for body in bodies:
            streams = (False, True) if path in STREAMED else (False,)
            for stream in (True,) if "events" in body else streams:
                answer = await site.http.post(path, json=body | ({"stream": True} if stream else {}))
                assert answer.status_code == 200, answer.text
                as_told(told, "post", path, answer)
        if path in STREAMED or "score" in path:
            as_told(told, "post", path, await site.http.post(path, json={"no_such_field": 1}))
            as_told(told, "post", path, await site.http.post(path, content=b"{"))
    assert set(told["paths"]) - set(GOOD) == {
        path for path, operations in told["paths"].items() if "post" not in operations or path.endswith("/cancel")
    }


async def test_what_is_read_is_told_too(site: Site) -> None:
    told = await document(site)
    kept = (await site.post("/v1/responses", input="hi")).json()["id"]
    for path, operations in told["paths"].items():
        if "get" in operations and path != "/cache":  # which the fake engine has not
            for name in ("fake", kept, "nowhere"):
                as_told(told, "get", path, await site.http.get(re.sub(r"\{\w+\}", name, path)))
    path = "/v1/responses/{response_id}"
    as_told(told, "post", f"{path}/cancel", await site.http.post(f"/v1/responses/{kept}/cancel"))
    for _ in range(2):
        as_told(told, "delete", path, await site.http.delete(f"/v1/responses/{kept}"))


async def test_other_methods_than_are_told_are_refused_and_the_told_ones_named(site: Site) -> None:
    for path, operations in (await document(site))["paths"].items():
        own = {method.upper() for method in operations}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - own:
            answer = await site.http.request(method, re.sub(r"\{\w+\}", "x", path))
            assert answer.status_code == 405 and set(answer.headers["allow"].split(", ")) == own, (method, path)


async def test_a_server_that_is_loading_or_guarded_answers_as_told() -> None:
    async with open_site(loaded=False) as loading:
        told = await document(loading)
        for path in ("/health", "/livez", "/metrics", "/v1/models", "/v1/loads", "/get_server_info"):
            as_told(told, "get", path, await loading.http.get(path))
        as_told(told, "post", "/v1/completions", await loading.complete())
    async with open_site(api_keys=("k",)) as guarded:
        assert (await guarded.http.get("/openapi.json")).status_code == 401
        guarded.http.headers["authorization"] = "Bearer k"
        told = await document(guarded)
        del guarded.http.headers["authorization"]
        assert told["components"]["securitySchemes"]
        for path, operations in told["paths"].items():
            for method, operation in operations.items():
                if "security" in operation:
                    as_told(told, method, path, await guarded.http.request(method, path))
