"""Something that happens once, such as the end of a call: waited for in threads and event loops, or called back for.

Every pending entry of a ledger has one. A `Future` without a result, and with a tenth of its objects: there are many, so that
those of one run share their lock.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

__all__ = ["Latch"]


class Latch:
    """Set once, then for ever. Thread-safe. `lock` is reentrant: what is collected while it is held may call back."""

    __slots__ = ("_calls", "_lock", "_set")

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self._lock = threading.RLock() if lock is None else lock
        self._set = False
        self._calls: tuple[Callable[[], object], ...] = ()

    @property
    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._set

    def set(self) -> None:
        """Let it have happened: whoever waits goes on, and what is to be called is, in this thread. Again it does nothing."""
        with self._lock:
            self._set = True
            calls, self._calls = self._calls, ()
        for call in calls:
            call()

    def then(self, call: Callable[[], object]) -> None:
        """Call `call` when it happens, in the thread that sets it; at once where it has happened. It must not raise."""
        with self._lock:
            if not self._set:
                self._calls = (*self._calls, call)
                return
        call()

    def wait(self) -> None:
        """Wait in this thread."""
        if not self._set:
            event = threading.Event()
            self.then(event.set)
            event.wait()

    async def reached(self) -> None:
        """Wait in the caller's event loop."""
        if self._set:
            return
        loop, here = asyncio.get_running_loop(), threading.get_ident()
        future = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def call() -> None:
            if threading.get_ident() == here:
                wake()
            else:
                with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
                    loop.call_soon_threadsafe(wake)

        self.then(call)
        await future
