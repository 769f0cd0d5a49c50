"""Replayable streams: what is put in is read in order by any number of readers, slow or late, threads or event loops.

Calls put their text here while they run; `State.text_iter` and `Run.branches_iter` read it. Waiting costs no CPU.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

__all__ = ["Reader", "Replay"]

T = TypeVar("T")


class Replay(Generic[T]):
    """An append-only sequence with an explicit end. `end(error)` makes every reader raise `error()` once it has read all.

    `lock` is reentrant, since what is collected while it is held may be a reader; the streams of one run share theirs.
    """

    __slots__ = ("_cuts", "_ended", "_error", "_items", "_lock", "_readers", "_sleepers")

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self._lock = threading.RLock() if lock is None else lock
        self._items: list[T] = []
        self._sleepers: tuple[Callable[[], object], ...] = ()
        self._ended = False
        self._error: Callable[[], BaseException] | None = None
        self._readers = 0
        self._cuts: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._items)

    def so_far(self) -> list[T]:
        """What was put in up to now."""
        with self._lock:
            return self._items.copy()

    def rewind(self, length: int) -> None:
        """Forget what came after the first `length` items: who reads later never sees it, who has read it goes on from there."""
        with self._lock:
            del self._items[length:]
            self._cuts = (*self._cuts, length)

    def enter(self) -> None:
        """Count a reader in."""
        with self._lock:
            self._readers += 1

    def leave(self) -> bool:
        """Count a reader out; whether it was the last one, and more would have come."""
        with self._lock:
            self._readers -= 1
            return self._readers == 0 and not self._ended

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def put(self, item: T) -> None:
        """Append; what comes after the end is dropped."""
        with self._lock:
            if not self._ended:
                self._items.append(item)
                self._wake()

    def end(self, error: Callable[[], BaseException] | None = None) -> None:
        """Let nothing more come. Only the first call counts."""
        with self._lock:
            if not self._ended:
                self._ended, self._error = True, error
                self._wake()

    def _wake(self) -> None:
        sleepers, self._sleepers = self._sleepers, ()
        for wake in sleepers:
            with contextlib.suppress(RuntimeError):  # the loop of that reader is closed: nobody waits there
                wake()

    def look(self, position: int, cuts: int, wake: Callable[[], object]) -> tuple[list[T] | None, int, int]:
        """What lies after `position` (None: the end), where the reader stands then, and the number of cuts it knows.

        Where there is nothing yet, `wake` is called when there is. Raises what the stream ended with.
        """
        with self._lock:
            position, cuts = min([position, *self._cuts[cuts:]]), len(self._cuts)
            if position < len(self._items):
                return self._items[position:], len(self._items), cuts
            if self._ended and self._error is not None:
                raise self._error()
            if self._ended:
                return None, position, cuts
            self._sleepers = (*self._sleepers, wake)
            return [], position, cuts

    def forget(self, wake: Callable[[], object]) -> None:
        """The reader that `wake` would wake waits no longer."""
        with self._lock:
            self._sleepers = tuple(other for other in self._sleepers if other is not wake)

    def __iter__(self) -> Iterator[T]:
        position, cuts, changed = 0, 0, threading.Event()
        wake = changed.set
        while True:
            batch, position, cuts = self.look(position, cuts, wake)
            if batch is None:
                return
            if not batch:
                try:
                    changed.wait()
                finally:
                    self.forget(wake)
                changed.clear()
            yield from batch

    def __aiter__(self) -> AsyncIterator[T]:
        return _Following(self)


class _Following(AsyncIterator[T]):
    """One reader in an event loop. Not a generator: one that is left in the middle has nothing that its loop must close."""

    def __init__(self, replay: Replay[T]) -> None:
        self._replay = replay
        self._position = self._cuts = 0
        self._batch: Iterator[T] = iter(())

    async def __anext__(self) -> T:
        for item in self._batch:
            return item
        changed = asyncio.Event()
        wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)
        while True:
            batch, self._position, self._cuts = self._replay.look(self._position, self._cuts, wake)
            if batch is None:
                raise StopAsyncIteration
            if batch:
                self._batch = iter(batch)
                return next(self._batch)
            try:
                await changed.wait()
            finally:
                self._replay.forget(wake)
            changed.clear()


class Reader(Generic[T]):
    """One reader of a stream, in threads (`for`) or event loops (`async for`).

    A context manager that closes it; one that nobody holds any more, as after `for … break`, is closed too.
    """

    def __init__(self, items: Iterator[T], async_items: AsyncIterator[T], on_close: Callable[[], None]) -> None:
        self._closed = False
        self._items = items
        self._async_items = async_items
        self._on_close = on_close

    def __iter__(self) -> "Reader[T]":
        return self

    def __next__(self) -> T:
        if self._closed:
            raise StopIteration
        return next(self._items)

    def __aiter__(self) -> "Reader[T]":
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        return await anext(self._async_items)

    def close(self) -> None:
        """Stop reading; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._on_close()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> "Reader[T]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def aclose(self) -> None:
        """Stop reading, in an event loop."""
        self.close()

    async def __aenter__(self) -> "Reader[T]":
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()
