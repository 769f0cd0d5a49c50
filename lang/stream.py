"""Replayable streams: what is put in is read in order by any number of readers, slow or late, threads or event loops.

Calls put their text here while they run; `State.text_iter` and `Run.branches_iter` read it. Waiting costs no CPU.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Reader", "Replay"]

T = TypeVar("T")


class Replay(Generic[T]):
    """An append-only sequence with an explicit end. `end(error)` makes every reader raise `error()` once it has read all."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._changed = threading.Condition()
        self._sleepers: set[Callable[[], object]] = set()
        self._ended = False
        self._error: Callable[[], BaseException] | None = None
        self._readers = 0
        self._cuts: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    def so_far(self) -> list[T]:
        """What was put in up to now."""
        with self._changed:
            return self._items.copy()

    def rewind(self, length: int) -> None:
        """Forget what came after the first `length` items: who reads later never sees it, who has read it goes on from there."""
        with self._changed:
            del self._items[length:]
            self._cuts.append(length)

    def enter(self) -> None:
        """Count a reader in."""
        with self._changed:
            self._readers += 1

    def leave(self) -> bool:
        """Count a reader out; whether it was the last one, and more would have come."""
        with self._changed:
            self._readers -= 1
            return self._readers == 0 and not self._ended

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    def put(self, item: T) -> None:
        """Append; what comes after the end is dropped."""
        with self._changed:
            if not self._ended:
                self._items.append(item)
                self._wake()

    def end(self, error: Callable[[], BaseException] | None = None) -> None:
        """Let nothing more come. Only the first call counts."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._sleepers:
            with contextlib.suppress(RuntimeError):  # the loop of that reader is closed: nobody waits there
                wake()
        self._sleepers.clear()

    def _from(self, position: int, cuts: int) -> tuple[int, int]:
        """Where a reader stands that had read up to `position` before the cuts after the first `cuts`."""
        return min([position, *self._cuts[cuts:]]), len(self._cuts)

    def _after(self, position: int) -> list[T] | None:
        """What lies after `position`, None at the end; called with the lock held. Raises what the stream ended with."""
        if position < len(self._items):
            return self._items[position:]
        if self._ended and self._error is not None:
            raise self._error()
        return None if self._ended else []

    def __iter__(self) -> Iterator[T]:
        position, cuts = 0, 0
        while True:
            with self._changed:
                position, cuts = self._from(position, cuts)
                while (batch := self._after(position)) == []:
                    self._changed.wait()
                    position, cuts = self._from(position, cuts)
            if batch is None:
                return
            position += len(batch)
            yield from batch

    def __aiter__(self) -> AsyncIterator[T]:
        return _Following(self)

    async def _more(self, position: int, cuts: int) -> tuple[list[T] | None, int, int]:
        """What lies after `position` once there is something, None at the end, and where the reader stands then."""
        while True:
            changed = asyncio.Event()
            wake = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, changed.set)
            with self._changed:
                position, cuts = self._from(position, cuts)
                batch = self._after(position)
                if batch != []:
                    return batch, position, cuts
                self._sleepers.add(wake)
            try:
                await changed.wait()
            finally:
                with self._changed:
                    self._sleepers.discard(wake)


class _Following(AsyncIterator[T]):
    """One reader in an event loop. Not a generator: one that is left in the middle has nothing that its loop must close."""

    def __init__(self, replay: Replay[T]) -> None:
        self._replay = replay
        self._position = self._cuts = 0
        self._batch: Iterator[T] = iter(())

    async def __anext__(self) -> T:
        for item in self._batch:
            return item
        batch, position, self._cuts = await self._replay._more(self._position, self._cuts)
        if batch is None:
            raise StopAsyncIteration
        self._position = position + len(batch)
        self._batch = iter(batch)
        return next(self._batch)


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
