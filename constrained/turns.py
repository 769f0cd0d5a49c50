"""Threads whose work comes from several owners in turn, so that no one's long line is in front of another's first piece.

Constraints wait here until they are compiled, those that must be tried out before in a line of their own; see `compiler`.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from branchpoint.constrained.errors import CompilerBusy

__all__ = ["Turns"]

Made = TypeVar("Made")


@dataclass(slots=True)
class _Piece:
    """How to do a piece of work, how to drop it, what is told of it, and in whose lines it stands."""

    do: Callable[[], None]
    drop: Callable[[], object]
    future: object
    owners: set[str] = field(default_factory=set)
    taken: bool = False


class Turns:
    """Does pieces of work on `threads` threads: the owners in rotation, an owner's own in their order. Thread-safe.

    At most `most` of one owner may wait. `close` ends the threads.
    """

    def __init__(self, most: int, threads: int, name: str) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lines: dict[str, deque[_Piece]] = {}
        self._waiting: dict[object, _Piece] = {}  # by their future
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, owner: str, work: Callable[[], Made]) -> "Future[Made]":
        """A future of what `work` returns. Raises CompilerBusy where `most` of this owner's wait already."""
        future = Future[Made]()
        piece = _Piece(lambda: _do(work, future), future.cancel, future)
        with self._lock:
            self._line_up(owner, piece)
            self._waiting[future] = piece
        self._threads.submit(self._serve)
        return future

    def join(self, owner: str, future: object) -> None:
        """`owner` waits for this work of another's too: it is done when either's turn comes. Raises as `submit` does."""
        with self._lock:
            piece = self._waiting.get(future)
            if piece is None or owner in piece.owners:
                return
            self._line_up(owner, piece)
        self._threads.submit(self._serve)

    def close(self) -> None:
        """Cancel what waits, let what runs finish, and end the threads."""
        with self._lock:
            self._lines = {}
            waiting, self._waiting = self._waiting, {}
        for piece in waiting.values():
            piece.drop()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _line_up(self, owner: str, piece: _Piece) -> None:
        line = self._lines.get(owner, deque())
        if len(line) >= self._most:
            raise CompilerBusy(f"{len(line)} of your constraints wait to be compiled already; try again later.")
        line.append(piece)
        piece.owners.add(owner)
        self._lines[owner] = line

    def _serve(self) -> None:
        with self._lock:
            piece = self._next()
        if piece is not None:
            piece.do()

    def _next(self) -> _Piece | None:
        """The next owner's next piece that nobody has taken yet; None where there is none any more."""
        while self._lines:
            owner, line = next(iter(self._lines.items()))
            piece = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line  # behind all others
            if not piece.taken:
                piece.taken = True
                del self._waiting[piece.future]
                return piece
        return None


def _do(work: Callable[[], Made], future: "Future[Made]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001  # the boundary of one piece of work: it is its future's
        future.set_exception(error)
