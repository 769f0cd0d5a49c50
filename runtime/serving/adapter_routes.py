"""Routes that load and unload LoRA adapters: vLLM's under /v1, SGLang's without. For admin keys, where there are keys.

Added to the application by `app`. `?model=NAME` says for which of several models. Nothing is loaded but from the folders that
the operator has listed.
"""

import asyncio
import logging

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from branchpoint.runtime.lora.adapter import check_name
from branchpoint.runtime.serving.adapters import folder_within
from branchpoint.runtime.serving.errors import ApiError, bad_request, clip
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.wire import Rules, as_request, decode_object, json_response, read_body

__all__ = ["ADAPTER_FORMS", "LoadAdapterRequest", "UnloadAdapterRequest", "adapter_router"]

logger = logging.getLogger("branchpoint.serving")

_MOST_BYTES = 2**16
_LOAD_RULES = Rules(refused={"pinned": (False,)})
_UNLOAD_RULES = Rules(refused={"lora_int_id": ()})


class LoadAdapterRequest(msgspec.Struct, frozen=True):
    """Body of /v1/load_lora_adapter and /load_lora_adapter. With `load_inplace` another adapter of this name is replaced."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterRequest(msgspec.Struct, frozen=True):
    """Body of /v1/unload_lora_adapter and /unload_lora_adapter."""

    lora_name: str


ADAPTER_FORMS: dict[str, type[msgspec.Struct]] = {
    "/v1/load_lora_adapter": LoadAdapterRequest,
    "/load_lora_adapter": LoadAdapterRequest,
    "/v1/unload_lora_adapter": UnloadAdapterRequest,
    "/unload_lora_adapter": UnloadAdapterRequest,
}


def adapter_router(models: Models) -> APIRouter:
    """All of them, for these models."""
    router = APIRouter()
    roots = models.shared.settings.lora_dirs
    turn = asyncio.Lock()  # a name that is free stays so until it is given, and what the engine did last is what is known here

    async def load(request: Request, model: str | None = None) -> Response:
        fields = as_request(decode_object(await read_body(request, _MOST_BYTES)), LoadAdapterRequest, _LOAD_RULES)
        check_name(fields.lora_name)
        async with turn:
            gateway = models.find(model)
            _check_free(models, gateway, fields.lora_name)
            if not roots:
                raise ApiError(403, "This server loads no adapters; start it with --lora-dirs FOLDER.", param="lora_path")
            folder = await gateway.aside(lambda: folder_within(fields.lora_path, roots))
            await gateway.adapters.load(fields.lora_name, folder, replace=fields.load_inplace)
        return _done(request, gateway, fields.lora_name, "added")

    async def unload(request: Request, model: str | None = None) -> Response:
        fields = as_request(decode_object(await read_body(request, _MOST_BYTES)), UnloadAdapterRequest, _UNLOAD_RULES)
        async with turn:
            gateway, name = models.find(model), fields.lora_name
            served = ", ".join(gateway.adapters) if gateway.loaded else ""
            if name not in gateway.adapters:
                raise ApiError(
                    404, f"The adapter {clip(name, 80)!r} does not exist. Served: {served or 'none'}.", param="lora_name"
                )
            await gateway.adapters.unload(name)
        return _done(request, gateway, name, "removed")

    for path, form in ADAPTER_FORMS.items():
        router.add_api_route(path, load if form is LoadAdapterRequest else unload, methods=["POST"])
    return router


def _check_free(models: Models, gateway: Gateway, name: str) -> None:
    """Raise InvalidRequest where an adapter of this gateway can't be called so: another model is meant by it."""
    meant = {each: name if name in each.names else each.adapters.named(name, each.names) for each in models}
    own = meant.pop(gateway)
    if name in gateway.loaded.names or own not in ("", name) or any(meant.values()):
        raise bad_request(f"lora_name {clip(name, 80)!r} is the name of another model here.", "lora_name")


def _done(request: Request, gateway: Gateway, name: str, what: str) -> Response:
    """As vLLM or SGLang tells it; and a line in the log."""
    logger.info("The adapter %s was %s by %s.", ascii(name), what, caller_of(request.scope).name or "a request")
    if request.scope["path"].startswith("/v1/"):
        return Response(f"Success: LoRA adapter '{name}' {what} successfully.", media_type="text/plain; charset=utf-8")
    return json_response({"success": True, "error_message": "", "loaded_adapters": list(gateway.adapters)})
