"""One thread whose work comes from several owners in turn, so that no one's long line is in front of another's first piece.

Constraints that must be tried out before they are compiled wait here; see `compiler`.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from branchpoint.constrained.errors import CompilerBusy

__all__ = ["Turns"]

Made = TypeVar("Made")
_Job = tuple["Future[Made]", Callable[[], Made]]


class Turns(Generic[Made]):
    """Does pieces of work one at a time: the owners in rotation, an owner's own in their order. Thread-safe; `close` ends it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lines: dict[str, deque[_Job[Made]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-trial")

    def submit(self, owner: str, work: Callable[[], Made]) -> "Future[Made]":
        """A future of what `work` returns. Raises CompilerBusy where `most` of this owner's wait already."""
        future = Future[Made]()
        with self._lock:
            line = self._lines.setdefault(owner, deque())
            if len(line) >= self._most:
                raise CompilerBusy(f"{len(line)} of your constraints wait to be tried out already; try again later.")
            line.append((future, work))
        self._thread.submit(self._serve)
        return future

    def close(self) -> None:
        """Cancel what waits, let what runs finish, and end the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            for line in self._lines.values():
                for future, _ in line:
                    future.cancel()
            self._lines.clear()

    def _serve(self) -> None:
        with self._lock:
            owner, line = next(iter(self._lines.items()))
            future, work = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line  # behind all others
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # the boundary of one piece of work: it is its future's
            future.set_exception(error)
