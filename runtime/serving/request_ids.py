"""The id of each HTTP request: in a header of every answer, refusals too, and in the log. The outermost ASGI layer but the meter.

A request may bring an id of its own, in the header or (see `app`) in its body; answers of the engine carry theirs.
"""

import uuid
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from branchpoint.runtime.serving.errors import bad_request

__all__ = ["RequestIds", "id_of", "name_request", "request_id"]

HEADER = b"x-request-id"
MAX_ID = 128

_SCOPE = "branchpoint.request_id"


def request_id(prefix: str, given: str | None, headers: Mapping[str, str]) -> str:
    """An id for a call: the caller's own (field or X-Request-Id header) or a new one. Raises InvalidRequest."""
    own = given if given is not None else headers.get("x-request-id")
    if own is None:
        return prefix + uuid.uuid4().hex
    if not _fits(own):
        raise bad_request(f"A request id must have 1 to {MAX_ID} printable ASCII characters.", "request_id")
    return own


def id_of(scope: Scope) -> str:
    """The id of this HTTP request; empty outside of `RequestIds`."""
    return str(scope.get(_SCOPE, ""))


def name_request(scope: Scope, own: str | None) -> None:
    """Call the request by the id that its body brings, if any that can be one."""
    if own is not None and _fits(own):
        scope[_SCOPE] = own


class RequestIds:
    """Gives each request of `app` an id, and each response the header, unless it has it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == HEADER), None)
        scope[_SCOPE] = given if given is not None and _fits(given) else f"req_{uuid.uuid4().hex}"

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if all(name != HEADER for name, _ in headers):
                    message = {**message, "headers": [*headers, (HEADER, id_of(scope).encode())]}
            await send(message)

        await self._app(scope, receive, named)


def _fits(own: str) -> bool:
    return 0 < len(own) <= MAX_ID and own.isascii() and own.isprintable()
