"""What the OpenAPI document tells, and holding answers to it."""

from typing import Any

import httpx
import jsonschema

from tests.runtime.serving_site import Site

__all__ = ["as_told", "document", "events"]


async def document(site: Site) -> dict[str, Any]:
    return (await site.http.get("/openapi.json")).json()


def as_told(told: dict[str, Any], method: str, path: str, answer: httpx.Response) -> None:
    """Hold an answer to what the document says of its route: status, content type, and shape."""
    responses = told["paths"][path][method]["responses"]
    assert str(answer.status_code) in responses, (path, answer.status_code, answer.text)
    kinds = responses[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].split(";")[0]
    assert kind in kinds, (path, kind)
    values = (
        [answer.json()] if kind == "application/json" else events(answer.text) if kind == "text/event-stream" else [answer.text]
    )
    for value in values:
        jsonschema.validate(value, kinds[kind]["schema"] | {"components": told["components"]})


def events(text: str) -> list[dict[str, str]]:
    """The events of a stream, each by the names of its fields."""
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.split("\n\n") if block]
