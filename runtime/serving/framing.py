"""How the pieces of a streamed answer stand on the wire, and how it says that it failed or has ended.

Chosen by a view, used by `answer`.
"""

from typing import Protocol

import msgspec

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import InvalidRequest, RuntimeFailure
from branchpoint.runtime.messages import Failed
from branchpoint.runtime.serving.errors import ApiError, anthropic_body, api_error, error_body
from branchpoint.runtime.serving.wire import Json

__all__ = ["EVENTS", "LINES", "NAMED", "RESPONSES", "Framing"]


class Framing(Protocol):
    """A format of streams."""

    media_type: str
    end: bytes
    idle: bytes

    def piece(self, chunk: object) -> bytes:
        """One chunk, as it is sent."""

    def failure(self, error: BranchpointError, request_id: str) -> object:
        """The chunk that tells of a failure after the first byte."""


class _Events:
    """OpenAI's server-sent events: nothing but data, `[DONE]` at the end."""

    media_type = "text/event-stream; charset=utf-8"
    end = b"data: [DONE]\n\n"
    idle = b": keep-alive\n\n"

    def piece(self, chunk: object) -> bytes:
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def failure(self, error: BranchpointError, request_id: str) -> object:
        return error_body(api_error(error))


class _Named(_Events):
    """Server-sent events called after their `type`; the last of them is the end (Anthropic's)."""

    end = b""

    def piece(self, chunk: object) -> bytes:
        assert isinstance(chunk, dict), "an event is an object with a type"
        return b"event: " + str(chunk["type"]).encode() + b"\n" + super().piece(chunk)

    def failure(self, error: BranchpointError, request_id: str) -> object:
        return anthropic_body(api_error(error))


class _Responses(_Named):
    """The same with the error event of OpenAI's Responses API."""

    def failure(self, error: BranchpointError, request_id: str) -> object:
        told = api_error(error)
        event: Json = {"type": "error", "code": str(told.status), "message": str(told), "param": told.param}
        return event


class _Lines:
    """The runtime's own events, one JSON object a line; the terminal one is the end."""

    media_type = "application/jsonl"
    end = b""
    idle = b"\n"

    def piece(self, chunk: object) -> bytes:
        return msgspec.json.encode(chunk) + b"\n"

    def failure(self, error: BranchpointError, request_id: str) -> object:
        kind = (
            error.kind if isinstance(error, InvalidRequest | RuntimeFailure) else _KINDS.get(api_error(error).status, "internal")
        )
        param = error.param if isinstance(error, InvalidRequest | RuntimeFailure | ApiError) else None
        return Failed(request_id, kind, str(error), param)


_KINDS = {429: "overloaded", 499: "aborted", 503: "overloaded", 504: "aborted"}

EVENTS: Framing = _Events()
NAMED: Framing = _Named()
RESPONSES: Framing = _Responses()
LINES: Framing = _Lines()
