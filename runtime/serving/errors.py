"""HTTP faces of errors: which status and which body an error of ours, or of a client, becomes.

Stands between the handlers, which raise, and the wire. Bodies are OpenAI's nested form; what they echo is bounded.
"""

import contextlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from reprlib import Repr

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import InvalidRequest, RuntimeFailure

__all__ = ["ApiError", "anthropic_body", "api_error", "bad_request", "body_for", "clip", "error_body", "named", "shown"]

MAX_ECHO = 600

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    499: "RequestAbortedError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STATUS = {
    "invalid_request": 400,
    "capacity": 400,
    "unknown_model": 404,
    "overloaded": 429,
    "aborted": 499,
    "engine_dead": 500,
    "internal": 500,
}


class ApiError(BranchpointError, RuntimeError):
    """An answer other than 200: HTTP `status`, message, the field at fault (`param`), seconds to wait (`retry_after`).

    `hang_up` asks the client not to use the connection again, since the server is going.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after: int | None = None, hang_up: bool = False
    ) -> None:
        super().__init__(clip(message))
        self.hang_up = hang_up
        self.status = status
        self.param = None if param is None else clip(param, 80)
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the body."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.hang_up:
            headers["Connection"] = "close"
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def clip(text: str, limit: int = MAX_ECHO) -> str:
    """`text`, cut to `limit` characters, so that no answer echoes a request at length."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def shown(value: object) -> str:
    """A short form of `value`, whatever its size and depth, for a message."""
    short = Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 3, 40, 40, 40
    return clip(short.repr(value), 80)


@contextlib.contextmanager
def named(names: Mapping[str | None, str]) -> Iterator[None]:
    """Let what is refused inside be about the request's own field where `names` has one for an option, or for what it lies in."""
    try:
        yield
    except InvalidRequest as error:
        name = _name(error.param, names)
        if name is None:
            raise
        message = str(error)
        if error.param is not None and message.startswith(error.param):
            message = name + message.removeprefix(error.param)
        raise type(error)(message, param=name) from error


def _name(param: str | None, names: Mapping[str | None, str]) -> str | None:
    if param in names:
        return names[param]
    around, dot, rest = (param or "").rpartition(".")
    found = _name(around, names) if dot else None
    return None if found is None else f"{found}.{rest}"


def bad_request(message: str, param: str | None = None) -> InvalidRequest:
    """A request that this server doesn't serve as asked, naming the field."""
    return InvalidRequest(message, param=param)


def api_error(error: BranchpointError) -> ApiError:
    """The answer that an error of ours becomes; what isn't the caller's fault is a 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequest | RuntimeFailure):
        status = _STATUS.get(error.kind, 500)
        return ApiError(status, str(error), param=error.param, retry_after=1 if status == HTTPStatus.TOO_MANY_REQUESTS else None)
    return ApiError(400 if isinstance(error, ValueError) else 500, str(error))


def error_body(error: ApiError) -> dict[str, object]:
    """OpenAI's nested error body, with the status as integer `code`."""
    kind = _TYPES.get(
        error.status, "BadRequestError" if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalServerError"
    )
    return {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.status}}


def anthropic_body(error: ApiError) -> dict[str, object]:
    """Anthropic's error body."""
    kind = _ANTHROPIC_TYPES.get(
        error.status, "invalid_request_error" if error.status < HTTPStatus.INTERNAL_SERVER_ERROR else "api_error"
    )
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def body_for(path: str, error: ApiError) -> dict[str, object]:
    """The error body that clients of the route at `path` know."""
    return anthropic_body(error) if path.startswith("/v1/messages") else error_body(error)
