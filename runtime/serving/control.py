"""Routes that look into the server's work, or change it: live requests, the cache, aborts. Behind the key.

Added to the application by `app`. `?model=NAME` names one of several models; without it the first one's cache is
shown, and all are flushed.
"""

import time
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from branchpoint.radix.picture import render, within
from branchpoint.runtime.serving.errors import ApiError
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import Caller, caller_of
from branchpoint.runtime.serving.live import live_requests
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.wire import Rules, as_request, decode_object, json_response, read_body

__all__ = ["AbortRequest", "control_router"]

ABORT_BYTES = 2**16
LONGEST_WAIT = 600


class AbortRequest(msgspec.Struct, frozen=True):
    """Body of /abort_request and /abort: the id of one request, or all."""

    rid: str | None = None
    abort_all: bool = False


def control_router(models: Models) -> APIRouter:
    """All of them, for these models."""
    router = APIRouter()

    @router.get("/branchpoint/requests")
    async def requests(request: Request) -> Response:
        return json_response(live_requests(models, caller_of(request.scope)))

    async def flush_cache(model: str | None = None, timeout: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0.0) -> Response:
        """Forget what no request uses; wait for running ones for so many seconds."""
        chosen, until = models.chosen(model), time.monotonic() + timeout
        for gateway in chosen:
            if gateway.num_open:
                await gateway.requests.idle(max(0.0, until - time.monotonic()))
        if count := sum(gateway.num_open for gateway in chosen):
            raise ApiError(400, f"The cache can't be flushed while requests run ({count} do). Try again later.")
        for gateway in chosen:
            await gateway.flush_cache()
        return json_response({"success": True, "message": "The cache is flushed."})

    for path, method in (("/flush_cache", "POST"), ("/flush_cache", "GET"), ("/reset_prefix_cache", "POST")):
        router.add_api_route(path, flush_cache, methods=[method])

    @router.get("/cache")
    async def cache(request: Request, format: Literal["json", "text"] = "json", model: str | None = None) -> Response:
        """What the radix tree holds of the caller's: `format=json`, or `text` for people."""
        return await _cache(models.find(model), caller_of(request.scope), as_text=format == "text")

    @router.post("/abort")
    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = decode_object(await read_body(request, ABORT_BYTES))
        fields = as_request(body, AbortRequest, Rules(refused={"abort_message": ()}))
        if not fields.rid and not fields.abort_all:  # an empty one would name whatever has none
            raise ApiError(400, "rid must name a request, or abort_all be true.", param="rid")
        count = models.abort(caller_of(request.scope), None if fields.abort_all else fields.rid)
        return json_response({"aborted": count})

    return router


async def _cache(gateway: Gateway, caller: Caller, *, as_text: bool) -> Response:
    dump, tokenizer = await gateway.dump_cache(), gateway.loaded.tokenizer
    tree, lost = within(dump.tree, caller.sees), [each for each in dump.lost if caller.sees(each.namespace)]
    for node in tree["nodes"]:
        node["text"] = tokenizer.decode(node["tokens"], skip_special=False)
    told = [each.describe(lambda tokens: tokenizer.decode(tokens, skip_special=False)) for each in lost]
    if as_text:
        return Response("\n".join([render(tree), *told, ""]), media_type="text/plain; charset=utf-8")
    found = [msgspec.to_builtins(each) | {"message": message} for each, message in zip(lost, told, strict=True)]
    return json_response(tree | {"lost_reuse": found})
