"""The OpenAPI document: each route with its body, its answers by status and content type, and how it errs.

Made from what FastAPI knows of the routes, the structs of their bodies, and `answers`. Asked for by `app`.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, cast

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from branchpoint.runtime.serving.answers import ANSWERS
from branchpoint.runtime.serving.auth import ADMIN_PATHS, OPEN_PATHS
from branchpoint.runtime.serving.wire import Json

__all__ = ["describe"]

JSON, EVENTS, LINES, TEXT = "application/json", "text/event-stream", "application/jsonl", "text/plain"

_POST_ERRORS: Final = (400, 401, 404, 413, 415, 429, 499, 500, 503, 504)
_READ_ERRORS: Final = (401, 429, 500, 503)
_MORE_ERRORS: Final[Mapping[str, tuple[int, ...]]] = {
    "/cache": (400,),
    "/flush_cache": (400,),
    "/reset_prefix_cache": (400,),
    "/v1/loads": (400,),
    "/v1/load": (400,),
    "/v1/models/{name}": (404,),
    "/v1/responses/{response_id}": (404,),
    "/v1/responses/{response_id}/cancel": (400, 404),
}
_SHAPES: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "Chat",
    "/v1/completions": "Completion",
    "/v1/responses": "Reply",
    "/v1/responses/{response_id}": "Reply",
    "/v1/messages": "Message",
    "/v1/messages/count_tokens": "InputTokens",
    "/v1/embeddings": "Embeddings",
    "/branchpoint/score": "OptionScores",
    "/branchpoint/render": "Prompt",
    "/branchpoint/end_program": "Program",
    "/v1/models": "Models",
    "/v1/models/{name}": "Model",
    **dict.fromkeys(("/abort", "/abort_request"), "Aborted"),
    "/flush_cache": "Flushed",
    "/load_lora_adapter": "Adapters",
    "/unload_lora_adapter": "Adapters",
    "/reset_prefix_cache": "Flushed",
    "/livez": "Status",
    **dict.fromkeys(("/health", "/health_generate", "/ready", "/readyz", "/ping"), "Status"),
    **dict.fromkeys(("/v1/score", "/score"), "Scores"),
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), "Ranking"),
    **dict.fromkeys(("/tokenize", "/v1/tokenize"), "Tokens"),
    **dict.fromkeys(("/detokenize", "/v1/detokenize"), "Prompt"),
}
"""What routes answer; any JSON where none stands here."""
_FRAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/programs"), (JSON, EVENTS)),
    "/generate": (JSON, EVENTS, LINES),
    "/cache": (JSON, TEXT),
    "/metrics": (TEXT,),
    "/v1/load_lora_adapter": (TEXT,),
    "/v1/unload_lora_adapter": (TEXT,),
}
"""Content types of answers; JSON where none stand here."""
_EVENT: Final[Json] = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "JSON, or [DONE]."}, "event": {"type": "string"}},
    "required": ["data"],
}
"""One event of a stream: before OpenAPI 3.2 a stream's schema is that of each of its events."""


def describe(app: FastAPI, forms: Mapping[str, type[msgspec.Struct]], *, guarded: bool) -> Json:
    """The document of `app`, whose routes at `forms`' paths take these bodies; `guarded`: it asks for a key."""
    shapes = dict.fromkeys((*forms.values(), *ANSWERS))
    _, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}", schema_hook=_anything)
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path in forms:
                body = {"schema": _reference(forms[path].__name__)}
                operation["requestBody"] = {"required": True, "content": {JSON: body}}
            named = any(parameter["name"] == "model" for parameter in operation.get("parameters", ()))
            operation["responses"] = _responses(path, method, sent=path in forms) | (_unknown() if named else {})
            if guarded and path not in OPEN_PATHS:
                operation["security"] = [{"bearer": []}]
    document["components"] = {"schemas": components}
    if guarded:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return cast(Json, document)


def _responses(path: str, method: str, *, sent: bool) -> Json:
    shape = "Deleted" if method == "delete" else _SHAPES.get(path, "")
    schema = _reference(shape) if shape else {}
    schemas = {JSON: schema, EVENTS: _EVENT}
    content = {kind: {"schema": schemas.get(kind, {"type": "string"})} for kind in _FRAMES.get(path, (JSON,))}
    told: Json = {"200": {"description": "What was asked for.", "content": content}}
    if path in OPEN_PATHS and path != "/metrics":
        return told | {"503": {"description": HTTPStatus(503).phrase, "content": {JSON: {"schema": _reference("Status")}}}}
    wrong = _reference("AnthropicError" if path.startswith("/v1/messages") else "Error")
    statuses = {*(_POST_ERRORS if sent else _READ_ERRORS), *_MORE_ERRORS.get(path, ()), *((403,) if path in ADMIN_PATHS else ())}
    if not sent and path.endswith("/cancel"):
        del told["200"]
    for status in sorted(statuses):
        told[str(status)] = {"description": _phrase(status), "content": {JSON: {"schema": wrong}}}
    return told


def _unknown() -> Json:
    """The answer where a route is asked for a model that isn't there."""
    return {"404": {"description": _phrase(404), "content": {JSON: {"schema": _reference("Error")}}}}


def _phrase(status: int) -> str:
    return "The client went away, or the request was aborted" if status == 499 else HTTPStatus(status).phrase  # nginx's number


def _reference(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _anything(_type: type) -> Json:
    """The schema of a part that is parsed further inside."""
    return {"description": "Any JSON value."}
