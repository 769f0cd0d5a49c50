"""What the runtime refuses or fails with. Each error knows its kind, so that it survives the trip between processes.

Raised at the doors (validation, loading) and rebuilt by `error_from` out of a `Failed` message on the caller's side.
"""

from typing import TYPE_CHECKING

from branchpoint.errors import BranchpointError

if TYPE_CHECKING:
    from branchpoint.runtime.messages import Usage

__all__ = [
    "CapacityError",
    "DeviceLost",
    "EngineDead",
    "InvalidRequest",
    "ModelError",
    "Overloaded",
    "RequestAborted",
    "RuntimeFailure",
    "UnknownModel",
    "error_from",
]


class RuntimeFailure(BranchpointError, RuntimeError):
    """The engine failed on a request through no fault of the caller; its message says where, `usage` what it had cost."""

    kind = "internal"
    usage: "Usage | None" = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(BranchpointError, ValueError):
    """A request that can't be served as asked; `param` names the option at fault."""

    kind = "invalid_request"
    usage: "Usage | None" = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(InvalidRequest):
    """A request that can never fit in the KV pool or the context, with the numbers."""

    kind = "capacity"


class UnknownModel(InvalidRequest):
    """A request for a model, or an adapter of one, that isn't there."""

    kind = "unknown_model"


class Overloaded(RuntimeFailure):
    """The queue is full or the server drains; try again later."""

    kind = "overloaded"


class RequestAborted(RuntimeFailure):
    """The request was aborted by its caller, by a deadline or by a shutdown."""

    kind = "aborted"


class EngineDead(RuntimeFailure):
    """The engine's thread or process is gone; nothing more can be asked of it."""

    kind = "engine_dead"


class DeviceLost(RuntimeFailure):
    """The GPU failed in a way that this process can't recover from; all that lay in its memory is gone."""


class ModelError(BranchpointError, ValueError):
    """A model that can't be loaded: unknown path or architecture, missing tensor, truncated file."""


_KINDS = {error.kind: error for error in (InvalidRequest, CapacityError, UnknownModel, Overloaded, RequestAborted, EngineDead)}


def error_from(
    kind: str, message: str, param: str | None = None, usage: "Usage | None" = None
) -> InvalidRequest | RuntimeFailure:
    """The error that a `Failed` message of this kind stands for."""
    error = _KINDS.get(kind, RuntimeFailure)(message, param=param)
    error.usage = usage
    return error
