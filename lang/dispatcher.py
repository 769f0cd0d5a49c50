"""One event loop for one backend, in one thread that lives only while somebody needs it.

Runs `hold` the dispatcher; when the last hold ends, so does the thread, while the loop and what is bound to it (connections)
stay for the next run. Backends inherit `Dispatched`; closing the backend closes the loop.
"""

import asyncio
import collections
import contextlib
import random
import secrets
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Self, TypeVar

from branchpoint.lang.errors import BackendError, ProgramMistake

__all__ = ["Dispatched", "Dispatcher"]

T = TypeVar("T")


class Dispatcher:
    """Owns the event loop. Thread-safe; nothing here may be called from the loop's own thread but `post`."""

    def __init__(self) -> None:
        self.random = random.Random(secrets.randbits(128))  # names and seeds of runs, without asking the system for each
        self._loop = asyncio.new_event_loop()
        self._aside = ThreadPoolExecutor(4, thread_name_prefix="branchpoint-aside")  # what the loop runs in threads, e.g. DNS
        self._loop.set_default_executor(self._aside)
        self._lock = threading.Lock()
        self._posting = threading.RLock()  # what is collected while it is held may post, too
        self._posted: collections.deque[tuple[Callable[..., object], tuple[object, ...]]] = collections.deque()
        self._woken = False
        self._thread: threading.Thread | None = None
        self._holds = 0
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise ProgramMistake("A backend that has been used can't be pickled or copied; make one in each process.")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the thread running."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Begin a hold. Raises BackendError where the backend is closed."""
        self.check_caller()
        with self._lock:
            if self._closed:
                raise BackendError("The backend is closed; make a new one for another run.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="branchpoint-dispatcher", daemon=True)
                self._thread.start()
            self._holds += 1

    def _serve(self) -> None:
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # out of one call's task, which has it, too: the loop is there for the others
                continue
            return

    def release(self) -> None:
        """End a hold; the last one ends the thread."""
        with self._lock:
            self._holds -= 1
            if self._holds == 0:
                self._stop()

    def _stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None

    def check_caller(self) -> None:
        """Raise ProgramMistake in the loop's own thread: waiting there would wait for ever."""
        if threading.current_thread() is self._thread:
            raise ProgramMistake("A program can't be run or read from inside a backend or a choices method: they must not block.")

    def post(self, function: Callable[..., object], *args: object) -> bool:
        """Call `function` in the loop soon, in the order of the calls; False where the backend is closed, and it never will be.

        Many calls wake the loop once. What was posted before a close is called before the loop ends.
        """
        with self._posting:
            if self._closed:
                return False
            self._posted.append((function, args))
            if not self._woken:
                self._woken = True
                here = threading.current_thread() is self._thread  # then there is nobody to wake
                (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._call_posted)
        return True

    def _call_posted(self) -> None:
        self._woken = False  # before looking: what comes later wakes the loop again
        while self._posted:
            function, args = self._posted.popleft()
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001  # the loop's boundary: what one call raises must not keep others from theirs
                self._loop.call_exception_handler({"message": f"{function!r} failed in the dispatcher.", "exception": error})

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` in the loop and wait for its result."""
        try:
            self.acquire()
        except BaseException:  # whatever it is, it goes on up; the coroutine must not be left unawaited
            coroutine.close()
            raise
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        finally:
            self.release()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `last`, cancel what still runs, end the thread and close the loop. A second call does nothing."""
        self.check_caller()
        if self._closed:
            return
        self.acquire()
        try:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        finally:
            with self._posting:
                self._closed = True
            asyncio.run_coroutine_threadsafe(_drain(), self._loop).result()
            with self._lock:
                self._stop()
                self._aside.shutdown(wait=False)
                self._loop.close()

    def discard(self) -> None:
        """Close a loop that nobody can use any more; called when its backend is collected."""
        self._closed = True
        self._aside.shutdown(wait=False)
        if self._thread is not None or self._loop.is_closed():
            return
        if asyncio._get_running_loop() is None:
            _end(self._loop)
        else:  # one loop can't run inside another
            threading.Thread(target=_end, args=(self._loop,), name="branchpoint-dispatcher-end", daemon=True).start()


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Let what a stopped loop still has to close be closed, and close it."""
    loop.run_until_complete(_drain())
    loop.close()


async def _drain() -> None:
    this = asyncio.current_task()
    await asyncio.sleep(0)
    while others := [task for task in asyncio.all_tasks() if task is not this]:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Dispatched:
    """A backend that brings its dispatcher. Inherit it beside the methods of `Backend`; `shutdown` or `with` ends the backend."""

    _dispatcher: Dispatcher | None = None

    @property
    def dispatcher(self) -> Dispatcher:
        """Made when it is first asked for."""
        if self._dispatcher is None:
            self._dispatcher = Dispatcher()
            weakref.finalize(self, self._dispatcher.discard)
        return self._dispatcher

    async def close(self) -> None:
        """Give back what the backend holds; a backend that holds something overrides this."""

    def shutdown(self) -> None:
        """Close the backend; its running requests fail. Calling it again does nothing."""
        self.dispatcher.close(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()
