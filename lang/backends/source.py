"""Things that are given where a backend is asked for, and aren't one themselves, such as an `Engine`.

`defaults.find_backend` asks them for theirs.
"""

from typing import Protocol, cast

from branchpoint.lang.backends.base import Backend

__all__ = ["BackendLike", "BackendSource", "backend_of"]


class BackendSource(Protocol):
    """Has a backend. Its own methods may have the backend's names and other meanings."""

    def as_backend(self) -> Backend:
        """What programs run on; the same each time."""


BackendLike = Backend | BackendSource
"""What may be given to `run(backend=...)`."""


def backend_of(given: BackendLike) -> Backend:
    """The backend that is given, or that of what is given."""
    if hasattr(given, "as_backend") and not isinstance(given, type):
        return cast(BackendSource, given).as_backend()
    return cast(Backend, given)
