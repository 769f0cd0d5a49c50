"""API keys: an ASGI layer around the whole application, so that no route can be forgotten.

Keys are compared in constant time; only health, metrics and the page, which tells nothing by itself, are open. What passes
carries its `Caller` in the scope.
"""

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from branchpoint.runtime.serving.errors import ApiError, body_for
from branchpoint.runtime.serving.keys import ANYONE, CALLER, Caller, KeyRing

__all__ = ["ADMIN_PATHS", "OPEN_PATHS", "KeyGuard"]

OPEN_PATHS = frozenset({"/", "/health", "/health_generate", "/livez", "/readyz", "/ready", "/ping", "/metrics"})
ADMIN_PATHS = frozenset(
    {
        "/flush_cache",
        "/reset_prefix_cache",
        "/load_lora_adapter",
        "/unload_lora_adapter",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
"""Paths that act on what belongs to all callers: for admin keys only, where there are some."""


class KeyGuard:
    """Lets a request pass where it carries one of `keys` as bearer token (or as `x-api-key`), or asks for an open path.

    `guard_metrics` takes /metrics from the open paths.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, *, guard_metrics: bool = False) -> None:
        self._app = app
        self._keys = keys
        self._open = OPEN_PATHS - {"/metrics"} if guard_metrics else OPEN_PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401, 403 or 429."""
        if scope["type"] == "lifespan" or not self._keys or scope.get("path") in self._open:
            await self._app(scope, receive, send)
            return
        caller = self._keys.find(_given(scope))
        refused = _refusal(caller, scope)
        if refused is None:
            scope[CALLER] = caller or ANYONE
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json")]
            headers += [(name.lower().encode(), value.encode()) for name, value in refused.headers.items()]
            await send({"type": "http.response.start", "status": refused.status, "headers": headers})
            await send({"type": "http.response.body", "body": msgspec.json.encode(body_for(scope.get("path", ""), refused))})


def _refusal(caller: Caller | None, scope: Scope) -> ApiError | None:
    if caller is None:
        return ApiError(401, "A valid API key is needed: send it as `Authorization: Bearer KEY`.")
    if scope.get("path") in ADMIN_PATHS and not caller.admin:
        return ApiError(403, "This API key may not manage the server; use one with admin = true.")
    try:
        if caller.quota is not None:
            caller.quota.count_request()
    except ApiError as error:
        return error
    return None


def _given(scope: Scope) -> bytes:
    given = b""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            given = value[7:].strip()
        elif name == b"x-api-key" and not given:
            given = value.strip()
    return bytes(given)
