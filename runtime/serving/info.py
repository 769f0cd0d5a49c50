"""Routes that tell about the server, or manage it: the page, models, health, metrics, cache, aborts. No generation.

Added to the application by `app`; all but the page, health and metrics lie behind the key.
"""

import time
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from branchpoint.radix.picture import render
from branchpoint.runtime.metrics import CONTENT_TYPE
from branchpoint.runtime.serving.errors import ApiError
from branchpoint.runtime.serving.gateway import Gateway, State
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.live import live_requests
from branchpoint.runtime.serving.page import page_route
from branchpoint.runtime.serving.wire import Json, Rules, as_request, decode_object, read_body

__all__ = ["AbortRequest", "info_router", "json_response", "version"]


ABORT_BYTES = 2**16


class AbortRequest(msgspec.Struct, frozen=True):
    """Body of /abort_request: the id of one request, or all."""

    rid: str | None = None
    abort_all: bool = False


def version() -> str:
    """The installed package's version."""
    try:
        return metadata.version("branchpoint")
    except metadata.PackageNotFoundError:
        return "unknown"


def json_response(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`body` as JSON; numbers that JSON doesn't know are null."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def info_router(gateway: Gateway) -> APIRouter:
    """All of them, for this gateway."""
    router = APIRouter()
    started = int(time.time())

    def card(name: str) -> Json:
        loaded = gateway.loaded
        facts = {"id": name, "object": "model", "created": started, "owned_by": "branchpoint", "root": loaded.names[0]}
        return facts | {"parent": None, "max_model_len": loaded.info.context_length}

    @router.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [card(name) for name in gateway.loaded.names]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        gateway.check_model(name)
        return json_response(card(name))

    @router.get("/version")
    async def get_version() -> Response:
        return json_response({"version": version()})

    for path in ("/get_model_info", "/model_info"):
        router.add_api_route(path, _model_info(gateway), methods=["GET"])
    for path in ("/get_server_info", "/server_info"):
        router.add_api_route(path, _server_info(gateway), methods=["GET"])

    @router.get("/branchpoint/requests")
    async def requests(request: Request) -> Response:
        return json_response(live_requests(gateway, caller_of(request.scope)))

    router.add_api_route("/", page_route(), methods=["GET", "HEAD"], include_in_schema=False)
    _add_health(router, gateway)
    _add_control(router, gateway)
    return router


def _add_health(router: APIRouter, gateway: Gateway) -> None:
    async def ready() -> Response:
        stuck = gateway.stuck
        good = gateway.state is State.READY and not stuck
        status = "stuck" if stuck else gateway.state.value
        return json_response({"status": status}, 200 if good else 503, None if good else {"Retry-After": "1"})

    async def alive() -> Response:
        return json_response({"status": gateway.state.value}, 503 if gateway.state is State.DEAD else 200)

    for path in ("/health", "/health_generate", "/readyz", "/ready", "/ping"):
        router.add_api_route(path, ready, methods=["GET"])
        router.add_api_route(path, ready, methods=["HEAD"], include_in_schema=False)  # what load balancers ask
    router.add_api_route("/livez", alive, methods=["GET"])
    router.add_api_route("/livez", alive, methods=["HEAD"], include_in_schema=False)

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await gateway.metrics(), headers={"content-type": CONTENT_TYPE})

    @router.get("/load")
    async def load() -> Response:
        return json_response({"server_load": gateway.num_open})

    async def loads() -> Response:
        info, stats = gateway.loaded.info, await gateway.stats()
        pages = info.num_pages
        one = {"dp_rank": 0, "num_running_reqs": stats.running, "num_waiting_reqs": stats.waiting + stats.compiling}
        one |= {"num_used_tokens": stats.pages_held * info.page_size, "max_total_num_tokens": pages * info.page_size}
        return json_response(
            {"timestamp": time.time(), "version": version(), "loads": [one | {"token_usage": stats.pages_held / pages}]}
        )

    for path in ("/v1/loads", "/v1/load"):
        router.add_api_route(path, loads, methods=["GET"])


def _add_control(router: APIRouter, gateway: Gateway) -> None:
    async def flush_cache() -> Response:
        if gateway.num_open:
            raise ApiError(400, f"The cache can't be flushed while requests run ({gateway.num_open} do). Try again later.")
        await gateway.flush_cache()
        return json_response({"success": True, "message": "The cache is flushed."})

    for path in ("/flush_cache", "/reset_prefix_cache"):
        router.add_api_route(path, flush_cache, methods=["POST"])
    router.add_api_route("/flush_cache", flush_cache, methods=["GET"], include_in_schema=False)

    router.add_api_route("/cache", _cache(gateway), methods=["GET"])

    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = decode_object(await read_body(request, ABORT_BYTES))
        fields = as_request(body, AbortRequest, Rules(refused={"abort_message": ()}))
        if not fields.rid and not fields.abort_all:  # an empty one would name whatever has none
            raise ApiError(400, "rid must name a request, or abort_all be true.", param="rid")
        count = gateway.requests.abort(caller_of(request.scope), None if fields.abort_all else fields.rid)
        return json_response({"aborted": count})


def _cache(gateway: Gateway) -> Callable[[str], Awaitable[Response]]:
    async def cache(
        format: Annotated[str, Query(json_schema_extra={"enum": ["json", "text"]})] = "json",
    ) -> Response:  # the field's name
        """What the radix tree holds: `format=json`, or `text` for people."""
        if format not in ("json", "text"):
            raise ApiError(400, f"format must be json or text, got {format[:40]!r}.", param="format")
        dump, tokenizer = await gateway.dump_cache(), gateway.loaded.tokenizer
        for node in dump.tree["nodes"]:
            node["text"] = tokenizer.decode(node["tokens"], skip_special=False)
        lost = [each.describe(lambda tokens: tokenizer.decode(tokens, skip_special=False)) for each in dump.lost]
        if format == "text":
            return Response("\n".join([render(dump.tree), *lost, ""]), media_type="text/plain; charset=utf-8")
        found = [msgspec.to_builtins(each) | {"message": message} for each, message in zip(dump.lost, lost, strict=True)]
        return json_response(dump.tree | {"lost_reuse": found})

    return cache


def _model_info(gateway: Gateway) -> Callable[[], Awaitable[Response]]:
    async def model_info() -> Response:
        loaded = gateway.loaded
        return json_response(
            {
                "model_path": loaded.names[0],
                "served_model_name": loaded.names[0],
                "tokenizer_path": loaded.names[0],
                "architecture": loaded.info.architecture,
                "is_generation": True,
                "preferred_sampling_params": loaded.info.sampling_defaults or None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "max_model_len": loaded.info.context_length,
                "vocab_size": loaded.info.vocabulary_size,
                "eos_token_ids": loaded.info.eos_token_ids,
            }
        )

    return model_info


def _server_info(gateway: Gateway) -> Callable[[], Awaitable[Response]]:
    async def server_info() -> Response:
        info = gateway.loaded.info
        sizes = {
            "num_pages": info.num_pages,
            "page_size": info.page_size,
            "max_total_num_tokens": info.num_pages * info.page_size,
        }
        stats = await gateway.stats()
        facts = {"version": version(), "served_model_name": gateway.loaded.names[0], "context_length": info.context_length}
        return json_response(facts | sizes | {"internal_states": [stats]})

    return server_info
