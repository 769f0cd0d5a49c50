"""Things that are given where a backend is asked for, and aren't one themselves, such as an `Engine`.

`defaults.find_backend` asks them for theirs.
"""

from typing import Protocol, runtime_checkable

from branchpoint.lang.backends.base import Backend

__all__ = ["BackendLike", "BackendSource"]


@runtime_checkable
class BackendSource(Protocol):
    """Has a backend. Its own methods may have the backend's names and other meanings."""

    def as_backend(self) -> Backend:
        """What programs run on; the same each time."""


BackendLike = Backend | BackendSource
"""What may be given to `run(backend=...)`."""
