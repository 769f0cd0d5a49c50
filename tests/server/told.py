"""What the OpenAPI document tells, and holding answers to it."""

from typing import Any

import httpx
import jsonschema

from tests.runtime.serving_site import Site

__all__ = ["as_told", "document"]


async def document(site: Site) -> dict[str, Any]:
    return (await site.http.get("/openapi.json")).json()


def as_told(told: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    """Hold an answer to what the document says of its route: status, content type, and shape."""
    responses = told["paths"][path][method]["responses"]
    assert str(answer.status_code) in responses, (path, answer.status_code, answer.text)
    kinds = responses[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].split(";")[0]
    assert kind in kinds, (path, kind)
    if kind == "application/json":
        jsonschema.validate(answer.json(), kinds[kind]["schema"] | {"components": told["components"]})
