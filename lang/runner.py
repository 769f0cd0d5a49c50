"""Runs a program's function on a fresh state, in this thread, in an event loop, or in a thread of its own.

However the function ends, nothing is left open: what still runs is aborted, streams end, the dispatcher is let go.
"""

import asyncio
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from branchpoint.lang.backends.base import Backend, is_ending, is_seeded
from branchpoint.lang.context import RUNNING, RunContext
from branchpoint.lang.executor import Executor
from branchpoint.lang.latch import Latch
from branchpoint.lang.ledger import Place
from branchpoint.lang.options import RunConfig, SamplingOptions
from branchpoint.lang.run import Run
from branchpoint.lang.state import State

__all__ = ["Job", "current_backend", "in_thread", "run_async", "run_here", "run_streaming"]

T = TypeVar("T")


def current_backend() -> Backend | None:
    """The backend of the program that is running here, None outside of programs."""
    within = RUNNING.get(())
    return within[-1].executor.backend if within else None


@dataclass(frozen=True, slots=True)
class Job:
    """A program bound to arguments: `body(state)` is its function; if `asynchronous`, what it gives is awaited.

    `options` are the run's sampling options, those of `config` and those given at the call.
    """

    name: str
    body: Callable[[State], object]
    asynchronous: bool
    options: SamplingOptions
    config: RunConfig


class _Session:
    """One job under way."""

    def __init__(self, job: Job, executor: Executor, *, streams: bool = False) -> None:
        seed = job.options.get("seed")
        if seed is None and is_seeded(executor.backend):
            seed = executor.backend.seed
        options = cast(SamplingOptions, {name: value for name, value in job.options.items() if name != "seed"})
        self.job = job
        self.executor = executor
        self.context = RunContext(
            executor,
            job.name,
            seed=seed if seed is not None else executor.dispatcher.random.getrandbits(63),
            options=options,
            config=job.config,
            streams=streams,
        )
        self.state = State(Place(self.context))
        self.outcome: Future[Any] = Future()
        self.outcome.set_running_or_notify_cancel()  # nobody who waits can take it away
        self._begin = time.perf_counter()
        self._end: float | None = None
        self.run: Run[Any] = Run(self.context, self.state, self.outcome, self.clock)

    def clock(self) -> float:
        """Seconds since the run began, or that it took."""
        return (self._end or time.perf_counter()) - self._begin

    def call(self) -> object:
        """Run the function in this thread and wait for its calls. Raises what failed."""
        token = RUNNING.set((*RUNNING.get(()), self.context))
        try:
            value = self.job.body(self.state)
            if self.job.asynchronous:
                value = _in_new_loop(cast(Awaitable[object], value))
            self.context.written = True
            self.context.watch(stops_early=True).wait()
        finally:
            RUNNING.reset(token)
        self.context.check()
        return value

    async def acall(self) -> object:
        """As `call`, in the caller's event loop."""
        token = RUNNING.set((*RUNNING.get(()), self.context))
        try:
            value = self.job.body(self.state)
            if self.job.asynchronous:
                value = await cast(Awaitable[object], value)
            self.context.written = True
            await self.context.watch(stops_early=True).reached()
        finally:
            RUNNING.reset(token)
        self.context.check()
        return value

    def finish(self, error: BaseException | None) -> None:
        """Abort what is open, wait until it is gone, and end the streams."""
        self.context.close(error)
        self.context.watch(stops_early=False).wait()
        if is_ending(self.executor.backend):
            with suppress(Exception):  # of the backend alone: the run has its outcome whatever it says of the end
                self.executor.backend.end_program(self.context.id, self.context.namespace)
        self._end = time.perf_counter()
        self.context.end(error)
        if (branches := self.context.branches) is not None:
            self.executor.drain(self.context)
            branches.end((lambda: error) if error is not None else None)

    def publish(self, value: object, error: BaseException | None) -> Run[Any]:
        """Set the outcome, the last thing of a run."""
        if error is None:
            self.outcome.set_result(value)
        else:
            self.outcome.set_exception(error)
        return self.run


def _in_new_loop(awaitable: Awaitable[object]) -> object:
    """Run an `async def` program from plain code: in a loop and a thread of its own, as this one may have a running loop."""

    async def main() -> object:
        return await awaitable

    return in_thread(lambda: asyncio.run(main())).result()


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """Begin `work` in a thread of its own, which sees the caller's context variables; what comes of it."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits in an event loop and is cancelled there can't take it away
    context = contextvars.copy_context()

    def body() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001  # the thread's boundary: the one who waits gets it
            future.set_exception(error)

    threading.Thread(target=body, name="branchpoint-program", daemon=True).start()
    return future


def run_here(job: Job, backend: Backend, executor: Executor | None = None) -> Run[Any]:
    """Run in this thread, with the executor of a batch or one of its own. Raises what failed."""
    with ExitStack() as stack:
        executor = executor or stack.enter_context(Executor(backend, max_concurrency=job.config.max_concurrency))
        session = _Session(job, executor)
        try:
            value = session.call()
        except BaseException as error:  # whatever ends the program ends the run too, and goes on up
            session.finish(error)
            raise
        session.finish(None)
        return session.publish(value, None)


async def run_async(job: Job, backend: Backend) -> Run[Any]:
    """Run in the caller's event loop; a plain function runs in a thread meanwhile. Raises what failed.

    Cancelling the task that waits aborts the run.
    """
    if not job.asynchronous:
        threaded, over = _begin(job, backend, streams=False), Latch()
        threaded.outcome.add_done_callback(lambda outcome: over.set())
        try:
            await over.reached()  # the loop's own futures can't hold every exception: StopIteration would never come out
        except asyncio.CancelledError:
            threaded.run.cancel()
            raise
        return threaded.run.wait()
    with Executor(backend, max_concurrency=job.config.max_concurrency) as executor:
        session = _Session(job, executor)
        try:
            value = await session.acall()
        except BaseException as error:  # whatever ends the program ends the run too, and goes on up
            session.finish(error)
            raise
        session.finish(None)
        return session.publish(value, None)


def run_streaming(job: Job, backend: Backend) -> Run[Any]:
    """Begin to run in a thread of its own, and give the run at once. What fails is raised by reading it."""
    return _begin(job, backend, streams=True).run


def _begin(job: Job, backend: Backend, *, streams: bool) -> _Session:
    """Run in a thread of its own; it ends with the session's outcome."""
    executor = Executor(backend, max_concurrency=job.config.max_concurrency)
    executor.__enter__()
    session = _Session(job, executor, streams=streams)

    def work() -> None:
        value, failure = None, None
        with ExitStack() as stack:
            stack.push(executor)
            try:
                value = session.call()
            except BaseException as error:  # noqa: BLE001  # the thread's boundary: whoever reads the run gets it
                failure = error
            session.finish(failure)
        session.publish(value, failure)

    in_thread(work)
    return session
