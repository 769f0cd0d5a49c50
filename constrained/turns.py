"""Threads whose work comes from several owners in turn, so that no one's long line is in front of another's first piece.

Constraints wait here until they are compiled, those that must be tried out before in a line of their own; see `compiler`.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from branchpoint.constrained.errors import CompilerBusy

__all__ = ["Turns"]

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class _Piece(Generic[Made]):
    work: Callable[[], Made]
    future: "Future[Made]"

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except BaseException as error:  # noqa: BLE001  # the boundary of one piece of work: it is its future's
            self.future.set_exception(error)

    def drop(self) -> None:
        self.future.cancel()


class Turns:
    """Does pieces of work on `threads` threads: the owners in rotation, an owner's own in their order. Thread-safe.

    At most `most` of one owner may wait. `close` ends the threads.
    """

    def __init__(self, most: int, threads: int, name: str) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lines: dict[str, deque[tuple[Callable[[], None], Callable[[], None]]]] = {}  # how to do each, and to drop it
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, owner: str, work: Callable[[], Made]) -> "Future[Made]":
        """A future of what `work` returns. Raises CompilerBusy where `most` of this owner's wait already."""
        piece = _Piece(work, Future[Made]())
        with self._lock:
            line = self._lines.setdefault(owner, deque())
            if len(line) >= self._most:
                raise CompilerBusy(f"{len(line)} of your constraints wait to be compiled already; try again later.")
            line.append((piece.do, piece.drop))
        self._threads.submit(self._serve)
        return piece.future

    def close(self) -> None:
        """Cancel what waits, let what runs finish, and end the threads."""
        with self._lock:
            lines, self._lines = self._lines, {}
        for line in lines.values():
            for _, drop in line:
                drop()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _serve(self) -> None:
        with self._lock:
            if not self._lines:  # closed meanwhile
                return
            owner, line = next(iter(self._lines.items()))
            do, _ = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line  # behind all others
        do()
