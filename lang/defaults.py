"""The process's default backend, for programs that are run without one.

`set_default_backend` is the one piece of global state of the language; everything else is passed along.
"""

from typing import Protocol, cast, runtime_checkable

from branchpoint.lang.backends.base import Backend
from branchpoint.lang.backends.source import BackendLike, backend_of
from branchpoint.lang.dispatcher import Dispatched, Dispatcher
from branchpoint.lang.errors import NotSupported, ProgramMistake
from branchpoint.lang.runner import current_backend

__all__ = ["Managed", "find_backend", "flush_cache", "get_server_info", "set_default_backend"]


class _Default:
    """Holds the default; one instance, because that is what a process-wide default is."""

    backend: BackendLike | None = None


_DEFAULT = _Default()


@runtime_checkable
class Managed(Protocol):
    """A backend that has a cache to flush and something to tell of itself."""

    async def flush_cache(self) -> None:
        """Forget all reusable prefixes."""

    async def server_info(self) -> dict[str, object]:
        """What the backend says of itself."""


def set_default_backend(backend: BackendLike | None) -> None:
    """Let programs that are run without a backend use this one; None takes it away. Raises ProgramMistake for what is none."""
    if backend is not None:
        _backend_of(backend)
    _DEFAULT.backend = backend


def find_backend(given: BackendLike | None = None) -> Backend:
    """The given backend, else that of the program that calls, else the default. Raises ProgramMistake where there is none."""
    for backend in (given, current_backend(), _DEFAULT.backend):
        if backend is not None:
            return _backend_of(backend)
    raise ProgramMistake("There is no backend: give run(backend=...), or call set_default_backend(...) before.")


def _backend_of(given: BackendLike) -> Backend:
    found = backend_of(given)
    if isinstance(found, type) or not all(hasattr(found, name) for name in ("capabilities", "generate", "score", "render")):
        hint = " Make one of it: call it." if isinstance(found, type) else ""
        raise ProgramMistake(f"A backend is an Engine, a RuntimeEndpoint or the like, got {given!r:.80}.{hint}")
    return found


def flush_cache(backend: BackendLike | None = None) -> None:
    """Forget all reusable prefixes of the backend. Raises NotSupported where it has none."""
    found, dispatcher = _managed(backend, "flush_cache")
    dispatcher.run(found.flush_cache())


def get_server_info(backend: BackendLike | None = None) -> dict[str, object]:
    """What the backend says of itself: model, context, counters. Raises NotSupported where it tells nothing."""
    found, dispatcher = _managed(backend, "get_server_info")
    return dispatcher.run(found.server_info())


def _managed(backend: BackendLike | None, asked: str) -> tuple[Managed, Dispatcher]:
    found: object = find_backend(backend)
    if isinstance(found, Managed) and isinstance(found, Dispatched):
        return found, cast(Dispatched, found).dispatcher
    raise NotSupported(f"A backend of type {type(found).__name__} has no {asked}.")
