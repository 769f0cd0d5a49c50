"""Routes that watchers ask: whether the models can serve, metrics, load. Added to the application by `app`.

A server of several models is ready when all of them are; `?model=NAME` asks for one.
"""

import time
from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from branchpoint.runtime.metrics import CONTENT_TYPE
from branchpoint.runtime.serving.gateway import Gateway, State
from branchpoint.runtime.serving.info import version
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.wire import Json, json_response

__all__ = ["health_router"]

READY_PATHS = ("/health", "/health_generate", "/readyz", "/ready", "/ping")
_WORST = (State.DEAD.value, State.DRAINING.value, "stuck", State.LOADING.value, State.READY.value)


def health_router(models: Models) -> APIRouter:
    """All of them, for these models."""
    router = APIRouter()

    async def ready(model: str | None = None) -> Response:
        told = _told(models.chosen(model))
        good = told["status"] == State.READY.value
        return json_response(told, 200 if good else 503, None if good else {"Retry-After": "1"})

    async def alive(model: str | None = None) -> Response:
        chosen = models.chosen(model)
        return json_response(_told(chosen), 503 if any(gateway.state is State.DEAD for gateway in chosen) else 200)

    for path, answer in (*((path, ready) for path in READY_PATHS), ("/livez", alive)):
        for method in ("GET", "HEAD"):  # load balancers ask by HEAD
            router.add_api_route(path, answer, methods=[method])

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await models.metrics(), headers={"content-type": CONTENT_TYPE})

    @router.get("/load")
    async def load(model: str | None = None) -> Response:
        return json_response({"server_load": sum(gateway.num_open for gateway in models.chosen(model))})

    async def loads(model: str | None = None, format: Literal["json"] = "json", include: str = "all") -> Response:
        """SGLang's figures, all of them whatever `include` names; in Prometheus's format they are at /metrics."""
        chosen = models.chosen(model) if model is not None else models.ready
        told = [await _load(rank, gateway) for rank, gateway in enumerate(chosen)]
        return json_response({"timestamp": time.time(), "version": version(), "loads": told})

    for path in ("/v1/loads", "/v1/load"):
        router.add_api_route(path, loads, methods=["GET"])
    return router


def _told(chosen: Sequence[Gateway]) -> Json:
    """The worst of their states, and where they are several, each one's."""
    statuses = {gateway.name: gateway.status for gateway in chosen}
    status = min(statuses.values(), key=_WORST.index)
    return {"status": status} if len(chosen) == 1 else {"status": status, "models": statuses}


async def _load(rank: int, gateway: Gateway) -> Json:
    info, stats = gateway.loaded.info, await gateway.stats()
    read = stats.totals.prompt_tokens
    return {
        "dp_rank": rank,
        "model": gateway.name,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting + stats.compiling,
        "num_used_tokens": stats.pages_held * info.page_size,
        "max_total_num_tokens": info.num_pages * info.page_size,
        "token_usage": stats.pages_held / info.num_pages,
        "cache_hit_rate": stats.totals.cached_tokens / read if read else 0.0,
    }
