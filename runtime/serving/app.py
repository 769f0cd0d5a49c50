"""The HTTP application: routes, error bodies, the key in front of everything.

Built by `server` (and by tests, around a fake engine). The generating routes are a table: path, parser, and the struct
that is the route's schema.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from branchpoint.errors import BranchpointError
from branchpoint.runtime.serving.adapter_routes import ADAPTER_FORMS, adapter_router
from branchpoint.runtime.serving.adapters import ADAPTER
from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.auth import KeyGuard
from branchpoint.runtime.serving.chat import CHAT_RULES, ChatRequest, answer_chat
from branchpoint.runtime.serving.completion import COMPLETION_RULES, CompletionRequest, answer_completion
from branchpoint.runtime.serving.control import AbortRequest, control_router
from branchpoint.runtime.serving.embeddings import EMBEDDING_RULES, EmbeddingRequest, answer_embeddings
from branchpoint.runtime.serving.errors import ApiError, api_error, bad_request, body_for, clip
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.generate import GENERATE_RULES, GenerateRequest, answer_generate
from branchpoint.runtime.serving.health import health_router
from branchpoint.runtime.serving.http_metrics import HttpMeter
from branchpoint.runtime.serving.inflight import TICKET, Ticket
from branchpoint.runtime.serving.info import info_router, version
from branchpoint.runtime.serving.keys import caller_of, key_ring
from branchpoint.runtime.serving.messages_route import (
    MESSAGES_RULES,
    CountRequest,
    MessagesRequest,
    answer_messages,
    count_message_tokens,
)
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.native import (
    EndProgramRequest,
    RenderRequest,
    ScoreRequest,
    answer_score,
    end_program,
    render,
)
from branchpoint.runtime.serving.openapi import describe
from branchpoint.runtime.serving.page import page_route
from branchpoint.runtime.serving.record import log_refusal
from branchpoint.runtime.serving.request_ids import RequestIds, name_request
from branchpoint.runtime.serving.responses import RESPONSES_RULES, ResponsesRequest, answer_responses, responses_router
from branchpoint.runtime.serving.scores import (
    RERANK_RULES,
    SCORE_RULES,
    RerankRequest,
    TextScoreRequest,
    answer_rerank,
    answer_text_score,
)
from branchpoint.runtime.serving.tokens import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from branchpoint.runtime.serving.wire import Json, Rules, decode_object, json_response, read_body

__all__ = ["Endpoint", "build_app"]

logger = logging.getLogger("branchpoint.serving")

LARGE_BODY = 2**18
IGNORED_HEADER = "X-Ignored-Fields"
MOST_NAMED, LONGEST_NAME = 10, 40
_PLAIN = re.compile(r"[\w.-]+", re.ASCII)

Parser = Callable[[Gateway, Json, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A generating route: its paths, the struct that is its body's schema, what it refuses, who answers; `puts`: PUT is POST."""

    paths: tuple[str, ...]
    form: type[msgspec.Struct]
    rules: Rules
    parse: Parser
    puts: bool = False


def _plain(work: Callable[[Gateway, Json], Awaitable[Json]]) -> Parser:
    """A parser for a route that answers at once, without the engine."""

    async def parse(gateway: Gateway, body: Json, _request: Request) -> Response:
        return json_response(await work(gateway, body))

    return parse


def _headed(answer: Callable[[Gateway, Json, Mapping[str, str]], Awaitable[Response]]) -> Parser:
    """A parser that needs no more of the request than its headers."""

    async def parse(gateway: Gateway, body: Json, request: Request) -> Response:
        return await answer(gateway, body, request.headers)

    return parse


_ROUTES = (
    Endpoint(("/v1/chat/completions",), ChatRequest, CHAT_RULES, _headed(answer_chat)),
    Endpoint(("/v1/completions",), CompletionRequest, COMPLETION_RULES, _headed(answer_completion)),
    Endpoint(("/v1/responses",), ResponsesRequest, RESPONSES_RULES, answer_responses),
    Endpoint(("/v1/messages",), MessagesRequest, MESSAGES_RULES, answer_messages),
    Endpoint(("/v1/messages/count_tokens",), CountRequest, MESSAGES_RULES, count_message_tokens),
    Endpoint(("/generate",), GenerateRequest, GENERATE_RULES, _headed(answer_generate), puts=True),
    Endpoint(("/v1/embeddings",), EmbeddingRequest, EMBEDDING_RULES, _headed(answer_embeddings)),
    Endpoint(("/v1/score", "/score"), TextScoreRequest, SCORE_RULES, _headed(answer_text_score)),
    Endpoint(("/v1/rerank", "/rerank", "/v2/rerank"), RerankRequest, RERANK_RULES, _headed(answer_rerank)),
    Endpoint(("/branchpoint/score",), ScoreRequest, Rules(), _headed(answer_score)),
    Endpoint(("/branchpoint/render",), RenderRequest, Rules(), _plain(render)),
    Endpoint(("/branchpoint/end_program",), EndProgramRequest, Rules(), end_program),
    Endpoint(("/tokenize", "/v1/tokenize"), TokenizeRequest, Rules(), _plain(tokenize)),
    Endpoint(("/detokenize", "/v1/detokenize"), DetokenizeRequest, Rules(), _plain(detokenize)),
)


def build_app(models: Models, more: Sequence[Endpoint] = ()) -> ASGIApp:
    """The application for these models; `more` are routes from above this room."""
    options = models.shared.settings
    app = FastAPI(title="Branchpoint", version=version(), docs_url=None, redoc_url=None)
    app.add_api_route("/", page_route(), methods=["GET", "HEAD"], include_in_schema=False)
    looks = (info_router(models), health_router(models), responses_router(models.shared.responses))
    routers = (*looks, control_router(models), adapter_router(models))
    for router in routers:
        app.include_router(router)
    for route in (*_ROUTES, *more):
        for path in route.paths:
            app.add_api_route(
                path,
                _endpoint(models, route),
                methods=["POST"],
                name=path.strip("/").replace("/", "_"),
                response_model=None,
            )
            if route.puts:
                app.add_api_route(path, _endpoint(models, route), methods=["PUT"])
    forms = {path: route.form for route in (*_ROUTES, *more) for path in route.paths}
    forms |= {"/abort_request": AbortRequest, "/abort": AbortRequest, **ADAPTER_FORMS}
    app.openapi = cache(partial(describe, app, forms, guarded=bool(options.api_keys or options.api_key_file)))  # type: ignore[method-assign]  # FastAPI's own way
    app.add_exception_handler(BranchpointError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_bad_query)
    routes = [route for source in (app, *routers) for route in source.routes if isinstance(route, Route)]
    app.add_exception_handler(HTTPException, partial(_on_http_error, routes))
    app.add_exception_handler(Exception, _on_bug)
    guarded = KeyGuard(app, key_ring(options.api_keys, options.api_key_file), guard_metrics=options.guard_metrics)
    return HttpMeter(RequestIds(guarded), models.shared.http, [route.path for route in routes])


def _endpoint(models: Models, route: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    options = models.shared.settings

    async def endpoint(request: Request) -> Response:
        gateway = models.first
        try:
            raw = await read_body(request, options.max_body_bytes)
            body = decode_object(raw) if len(raw) < LARGE_BODY else await models.shared.aside(partial(decode_object, raw))
            unknown = () if options.strict else _take_unknown(body, route)
            own = _own_id(body, request.headers)
            name_request(request.scope, own)
            if body.get("model") is None and "model" in request.query_params:
                body["model"] = request.query_params["model"]
            gateway = models.of(body)
            request.scope[ADAPTER] = gateway.adapters.asked(body, gateway.names)
            ticket = gateway.requests.arrive(caller_of(request.scope), own)
            response = await _parsed(gateway, route, body, request, ticket)
        except BranchpointError as error:
            gateway.refused(error)
            log_refusal(request.scope, error)
            raise
        if unknown:
            response.headers[IGNORED_HEADER] = ", ".join(unknown)
        return response

    return endpoint


async def _parsed(gateway: Gateway, route: Endpoint, body: Json, request: Request, ticket: Ticket) -> Response:
    """The response to a body; the ticket goes on with an `Answer`, which gives it back, and back here otherwise."""
    request.scope[TICKET] = ticket
    response: Response | None = None
    try:
        response = await route.parse(gateway, body, request)
    finally:
        if not isinstance(response, Answer):
            gateway.requests.leave(ticket)
    return response


def _own_id(body: Json, headers: Mapping[str, str]) -> str | None:
    """The id under which a request can be aborted before it is in the engine."""
    given = (body.get("rid"), body.get("request_id"), headers.get("x-request-id"))
    return next((one for one in given if isinstance(one, str)), None)


def _take_unknown(body: Json, route: Endpoint) -> tuple[str, ...]:
    """Take fields that the route doesn't know out of `body`; their names, as they can stand in a header."""
    known = {*route.form.__struct_encode_fields__, *route.rules.refused, *route.rules.inert}
    unknown = [name for name in body if name not in known]
    for name in unknown:
        del body[name]
    return tuple(map(_in_header, unknown[:MOST_NAMED]))


def _in_header(name: str) -> str:
    """A field's name as it can stand in a header: as itself where it is a plain word, else as JSON."""
    short = name if len(name) <= LONGEST_NAME else name[:LONGEST_NAME] + "..."
    return short if _PLAIN.fullmatch(short) else json.dumps(short).replace("\x7f", "\\u007f")


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BranchpointError)
    answer = api_error(error)
    return json_response(body_for(request.scope["path"], answer), answer.status, answer.headers)


async def _on_bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = clip(".".join(map(str, first["loc"][1:])), 80)
    return await _on_error(request, bad_request(f"{name}: {first['msg']}.", name))


async def _on_http_error(routes: Sequence[Route], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = clip(request.scope["path"], 120)
    told = {404: f"There is no {path} here.", 405: f"{path} doesn't answer {request.method}."}
    answer = ApiError(error.status_code, told.get(error.status_code, str(error.detail)))
    headers = dict(error.headers or {}) | ({"Allow": _allowed(routes, request)} if error.status_code == 405 else {})
    return json_response(body_for(request.scope["path"], answer), answer.status, headers)


def _allowed(routes: Sequence[Route], request: Request) -> str:
    """The methods of all routes of this path."""
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for methods in found for method in methods}))


async def _on_bug(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, clip(ascii(request.scope["path"])), exc_info=error)
    answer = ApiError(500, f"The server failed on this request: {type(error).__name__}.")
    return json_response(body_for(request.scope["path"], answer), 500)
