"""Routes that tell of the models and of the server as such. Behind the key.

Added to the application by `app`. `?model=NAME` names one of several models; the first is meant without it.
"""

import time
from importlib import metadata

from fastapi import APIRouter
from starlette.responses import Response

from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.wire import Json, json_response

__all__ = ["info_router", "version"]


def version() -> str:
    """The installed package's version."""
    try:
        return metadata.version("branchpoint")
    except metadata.PackageNotFoundError:
        return "unknown"


def info_router(models: Models) -> APIRouter:
    """All of them, for these models."""
    router = APIRouter()
    started = int(time.time())

    def card(gateway: Gateway, name: str) -> Json:
        loaded = gateway.loaded
        facts = {"id": name, "object": "model", "created": started, "owned_by": "branchpoint", "root": loaded.names[0]}
        parent = None if name in loaded.names else loaded.names[0]
        return facts | {"parent": parent, "max_model_len": loaded.info.context_length}

    @router.get("/v1/models")
    async def list_models() -> Response:
        cards = [card(gateway, name) for gateway in models.ready for name in (*gateway.loaded.names, *gateway.adapters)]
        return json_response({"object": "list", "data": cards})

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        gateway = models.find(name)
        return json_response(card(gateway, gateway.adapters.named(name, gateway.names) or name))

    @router.get("/version")
    async def get_version() -> Response:
        return json_response({"version": version()})

    async def model_info(model: str | None = None) -> Response:
        return json_response(_model_info(models.find(model)))

    async def server_info(model: str | None = None) -> Response:
        return json_response(await _server_info(models.find(model)))

    for path, answer in (("model_info", model_info), ("server_info", server_info)):
        router.add_api_route(f"/get_{path}", answer, methods=["GET"])
        router.add_api_route(f"/{path}", answer, methods=["GET"])
    return router


def _model_info(gateway: Gateway) -> Json:
    loaded = gateway.loaded
    return {
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


async def _server_info(gateway: Gateway) -> Json:
    info = gateway.loaded.info
    sizes = {
        "num_pages": info.num_pages,
        "page_size": info.page_size,
        "max_total_num_tokens": info.num_pages * info.page_size,
    }
    stats = await gateway.stats()
    facts = {"version": version(), "served_model_name": gateway.loaded.names[0], "context_length": info.context_length}
    return facts | sizes | {"internal_states": [stats]}
