"""API keys: an ASGI layer around the whole application, so that no route can be forgotten.

Keys are compared in constant time; only health and metrics are open.
"""

import hashlib
import hmac

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from branchpoint.runtime.serving.errors import ApiError, error_body

__all__ = ["OPEN_PATHS", "KeyGuard"]

OPEN_PATHS = frozenset({"/health", "/health_generate", "/livez", "/readyz", "/ready", "/ping", "/metrics"})


class KeyGuard:
    """Lets a request pass where it carries one of `keys` as bearer token (or as `x-api-key`), or asks for an open path."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = tuple(_digest(key.encode()) for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "lifespan" or not self._digests or scope.get("path") in OPEN_PATHS or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = ApiError(401, "A valid API key is needed: send it as `Authorization: Bearer KEY`.")
        headers = [(b"content-type", b"application/json")] + [
            (k.lower().encode(), v.encode()) for k, v in refused.headers.items()
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(error_body(refused))})

    def _allowed(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
            elif name == b"x-api-key" and not given:
                given = value.strip()
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]  # all of them: no early end to measure
        return any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
