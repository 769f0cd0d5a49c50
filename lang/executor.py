"""Performs the pending entries of ledgers: one event loop, no thread per state, nothing here blocks.

An entry is performed when the one before it is settled. A failure settles it, and by that everything after it in its
state and in the forks that came out of it.
"""

import asyncio
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Protocol, TypeGuard

from branchpoint.lang.backends.base import Backend
from branchpoint.lang.chain import prompt_of, text_of, turns_of
from branchpoint.lang.chat import ChatText, RoleText, Turn
from branchpoint.lang.context import RunContext
from branchpoint.lang.dispatcher import Dispatched, Dispatcher
from branchpoint.lang.errors import BackendError, OutOfBudget, said_by
from branchpoint.lang.expr import Gen
from branchpoint.lang.ledger import Failure, Pending, RoleEntry, Splice
from branchpoint.lang.pieces import follow
from branchpoint.lang.request import generate, select
from branchpoint.lang.variables import CallEntry, Insert
from branchpoint.runtime.errors import RequestAborted
from branchpoint.runtime.messages import Segment, Text, Usage

if TYPE_CHECKING:
    from branchpoint.lang.state import State

__all__ = ["Executor", "RoleTexts"]

_UNREAD = "nobody reads it, or the backend was closed"


class RoleTexts(Protocol):
    """Finds the text around roles. A backend that knows it without a template is one itself, for others there is `ChatText`."""

    async def begin(self, turns: Sequence[Turn], role: str, prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""

    async def end(self, turns: Sequence[Turn], prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""


class Executor:
    """Serves the runs of one batch on one backend. Use it as a context manager: it holds the backend's dispatcher.

    At most `max_concurrency` calls are in flight; the others wait in the order in which they became ready.
    """

    def __init__(self, backend: Backend, *, max_concurrency: int) -> None:
        self.backend = backend
        self._own = None if isinstance(backend, Dispatched) else Dispatcher()
        self.dispatcher = backend.dispatcher if isinstance(backend, Dispatched) else (self._own or Dispatcher())
        self._chat: RoleTexts = backend if _knows_roles(backend) else ChatText(backend)
        self._slots = asyncio.Semaphore(max_concurrency)
        self._lock = threading.Lock()  # runs begin in threads of their own while others are cancelled
        self._contexts: weakref.WeakSet[RunContext] = weakref.WeakSet()
        self._cancelled = False
        self._pumps: dict[RunContext, list[asyncio.Task[None]]] = {}

    def __enter__(self) -> "Executor":
        self.dispatcher.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.dispatcher.release()
        if self._own is not None:
            self._own.close()

    def join(self, context: RunContext) -> None:
        """Take a run in."""
        with self._lock:
            self._contexts.add(context)
            cancelled = self._cancelled
        if cancelled:
            context.cancel()

    def cancel(self) -> None:
        """Abort the calls of all runs, those that begin later too."""
        with self._lock:
            self._cancelled = True
            contexts = tuple(self._contexts)
        for context in contexts:
            context.cancel()

    def schedule(self, entry: Pending) -> None:
        """Perform `entry` once its gate is settled. Thread-safe, never waits."""
        gate = entry.gate
        if gate is None:
            self._post(entry)
        else:
            gate.done.then(functools.partial(self._post, entry))

    def stop(self, entries: Iterable[Pending]) -> None:
        """Cancel what runs of these. Thread-safe, never waits; what was scheduled before is started by then, or won't be."""
        self.dispatcher.post(_stop, tuple(entries))

    def _post(self, entry: Pending) -> None:
        if not self.dispatcher.post(self._start, entry):
            self._abort(entry, "the backend was closed")

    def _abort(self, entry: Pending, why: str) -> None:
        failure = Failure(entry, RequestAborted(f"The call was aborted: {entry.dropped or why}."))
        failure.observed = entry.place.context.closed
        entry.place.context.settle(entry, failure)

    def _start(self, entry: Pending) -> None:
        context = entry.place.context
        if entry.gate is not None and entry.gate.failure is not None:
            context.settle(entry, entry.gate.failure)
        elif context.cancelled or entry.dropped or entry.unwanted:
            self._abort(entry, _end_of(context) if context.cancelled else _UNREAD)
        else:
            entry.task = asyncio.get_running_loop().create_task(self._perform(entry))

    async def _perform(self, entry: Pending) -> None:
        context = entry.place.context
        begin = time.perf_counter()
        try:
            if isinstance(entry, CallEntry):
                with context.budget.hold():
                    async with self._slots:
                        await self._call(entry)
            elif isinstance(entry, RoleEntry):
                await self._role(entry)
            elif isinstance(entry, Splice):
                await self._splice(entry)
            elif isinstance(entry, Insert):
                await _insert(entry)
        except asyncio.CancelledError as error:
            _lose(entry, begin, error)
            why = context.budget.over()
            if why is not None and not (context.cancelled or entry.dropped):
                context.settle(entry, Failure(entry, OutOfBudget(why, partial="".join(entry.pieces.so_far()))))
            else:
                why = _end_of(context) if context.cancelled else _UNREAD
                self._abort(entry, why)
        except BaseException as error:  # noqa: BLE001  # the boundary to backends: what they raise fails this call, and ends no loop
            _lose(entry, begin, error)
            context.settle(entry, Failure(entry, error))
        else:
            context.settle(entry, None)
        finally:
            entry.task = None

    async def _call(self, entry: CallEntry) -> None:
        begin = entry.began = time.perf_counter()
        if isinstance(entry.expr, Gen):
            meta = await generate(self.backend, entry, entry.expr, begin)
        else:
            meta = await select(self.backend, entry, entry.expr, begin)
        entry.finish(meta)

    async def _role(self, entry: RoleEntry) -> None:
        turns, prompt = turns_of(entry.previous), prompt_of(entry.previous)
        found = await (self._chat.begin(turns, entry.role, prompt) if entry.opens else self._chat.end(turns, prompt))
        entry.result = (Text(found.text, special=True),) if found.text else ()
        entry.rebase = found.rebase
        entry.pieces.put(found.text)

    async def _splice(self, entry: Splice) -> None:
        for gate in entry.gates:
            await gate.done.reached()
            gate.check()
        for tail in entry.tails:
            entry.pieces.put(text_of(tail, entry.base))

    def pump(self, state: "State") -> None:
        """Copy the text that `state` adds into its run's stream of all branches. Thread-safe, never waits."""
        self.dispatcher.post(self._begin_pump, state)

    def _begin_pump(self, state: "State") -> None:
        task = asyncio.get_running_loop().create_task(_copy(state))
        self._pumps.setdefault(state.place.context, []).append(task)

    def drain(self, context: RunContext) -> None:
        """Wait until the stream of all branches holds everything that the ended run gave."""
        with contextlib.suppress(BackendError, futures.CancelledError):  # the backend was closed: what came is what there is
            self.dispatcher.run(self._pumped(context))

    async def _pumped(self, context: RunContext) -> None:
        await asyncio.gather(*self._pumps.pop(context, ()), return_exceptions=True)  # the run's own end tells what failed


def _knows_roles(backend: Backend) -> TypeGuard[RoleTexts]:
    return hasattr(backend, "begin") and hasattr(backend, "end")


async def _insert(entry: Insert) -> None:
    for need in entry.variable.needs():
        await need.done.reached()
    text = str(entry.variable.read())
    entry.result = (Text(text),) if text else ()
    entry.pieces.put(text)


def _stop(entries: Iterable[Pending]) -> None:
    loop = asyncio.get_running_loop()
    for entry in entries:
        if entry.task is not None:
            loop.call_soon(entry.task.cancel)  # behind its first step: a task that never began would never settle its entry


def _lose(entry: Pending, begin: float, error: BaseException) -> None:
    """Keep what a call cost that came to nothing, as far as is known: what the backend said, else the output that was seen."""
    if isinstance(entry, CallEntry):
        usage = getattr(error, "usage", None)
        usage = usage if isinstance(usage, Usage) else Usage(completion_tokens=entry.seen)
        if usage != Usage():
            entry.lose(usage, time.perf_counter() - begin)


def _end_of(context: RunContext) -> str:
    if not context.closed:
        return "the run was cancelled"
    error = context.failed_with
    return "the run ended" if error is None else f"the run ended with {type(error).__name__}: {said_by(error)}"


async def _copy(state: "State") -> None:
    branches = state.place.context.branches
    with contextlib.suppress(BaseException):  # the run tells what it ended with; SystemExit would end the loop, too
        async for piece in follow(state.log):
            if branches is not None:
                branches.put((state.branch, piece))
