"""The HTTP application: routes, error bodies, the key in front of everything.

Built by `server` (and by tests, around a fake engine). The generating routes are a table: path, parser, and the struct
that is the route's schema.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from branchpoint.errors import BranchpointError
from branchpoint.runtime.serving.auth import KeyGuard
from branchpoint.runtime.serving.chat import ChatRequest, answer_chat
from branchpoint.runtime.serving.completion import CompletionRequest, answer_completion
from branchpoint.runtime.serving.errors import ApiError, api_error, clip, error_body
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.generate import GenerateRequest, answer_generate
from branchpoint.runtime.serving.info import info_router, json_response, version
from branchpoint.runtime.serving.native import RenderRequest, ScoreRequest, answer_score, render
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.tokens import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from branchpoint.runtime.serving.wire import Json, decode_object, read_body

__all__ = ["build_app"]

logger = logging.getLogger("branchpoint.serving")

LARGE_BODY = 2**18

Parser = Callable[[Gateway, Json, Mapping[str, str]], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class _Route:
    paths: tuple[str, ...]
    form: type[msgspec.Struct]
    parse: Parser


def _plain(work: Callable[[Gateway, Json], Awaitable[Json]]) -> Parser:
    """A parser for a route that answers at once, without the engine."""

    async def parse(gateway: Gateway, body: Json, _headers: Mapping[str, str]) -> Response:
        return json_response(await work(gateway, body))

    return parse


_ROUTES = (
    _Route(("/v1/chat/completions",), ChatRequest, answer_chat),
    _Route(("/v1/completions",), CompletionRequest, answer_completion),
    _Route(("/generate",), GenerateRequest, answer_generate),
    _Route(("/branchpoint/score",), ScoreRequest, answer_score),
    _Route(("/branchpoint/render",), RenderRequest, _plain(render)),
    _Route(("/tokenize", "/v1/tokenize"), TokenizeRequest, _plain(tokenize)),
    _Route(("/detokenize", "/v1/detokenize"), DetokenizeRequest, _plain(detokenize)),
)


def build_app(gateway: Gateway, options: ServerOptions) -> ASGIApp:
    """The application for one gateway."""
    app = FastAPI(title="Branchpoint", version=version(), docs_url=None, redoc_url=None)
    app.include_router(info_router(gateway))
    for route in _ROUTES:
        for path in route.paths:
            app.add_api_route(
                path,
                _endpoint(gateway, options, route.parse),
                methods=["POST"],
                name=path.strip("/").replace("/", "_"),
                response_model=None,
                openapi_extra={
                    "requestBody": {"required": True, "content": {"application/json": {"schema": _schema(route.form)}}}
                },
            )
    app.add_exception_handler(BranchpointError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    return KeyGuard(app, options.api_keys)


def _endpoint(gateway: Gateway, options: ServerOptions, parse: Parser) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            raw = await read_body(request, options.max_body_bytes)
            body = decode_object(raw) if len(raw) < LARGE_BODY else await gateway.aside(partial(decode_object, raw))
            return await parse(gateway, body, request.headers)
        except BranchpointError as error:
            gateway.refused(error)
            raise

    return endpoint


@cache
def _schema(form: type[msgspec.Struct]) -> Json:
    """The JSON schema of a route's body, with what it refers to inside."""
    _, components = msgspec.json.schema_components([form], ref_template="#/$defs/{name}", schema_hook=_anything)
    return dict(components.pop(form.__name__)) | {"$defs": components}


def _anything(_type: type) -> Json:
    """The schema of a part that is parsed further inside."""
    return {"description": "Any JSON value."}


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BranchpointError)
    answer = api_error(error)
    return json_response(error_body(answer), answer.status, answer.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = clip(request.url.path, 120)
    told = {404: f"There is no {path} here.", 405: f"{path} doesn't answer {request.method}."}
    answer = ApiError(error.status_code, told.get(error.status_code, str(error.detail)))
    return json_response(error_body(answer), answer.status, dict(error.headers or {}))


async def _on_bug(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, clip(ascii(request.url.path)), exc_info=error)
    return json_response(error_body(ApiError(500, f"The server failed on this request: {type(error).__name__}.")), 500)
