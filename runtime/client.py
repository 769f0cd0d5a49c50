"""The caller's side of an engine, the same whether it runs in a thread or in a process: `EngineClient`, and its open calls.

Used by the language's engine backend and by the server; made by `process.py`.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Protocol

from branchpoint.runtime.errors import EngineDead, InvalidRequest, RuntimeFailure, error_from
from branchpoint.runtime.loop import Answer, Report
from branchpoint.runtime.messages import Call, Completed, Event, Failed, ModelInfo, ScoreCall, Scored
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = ["EngineClient", "OnEvent", "OpenCalls"]

OnEvent = Callable[[Event], None]
"""Called on a thread of the client for each event of a call; must neither block nor raise."""


class EngineClient(Protocol):
    """An engine to be called from any thread. `info` tells of its model.

    Each submitted call gets exactly one terminal event, whatever happens to the engine; refusals too arrive as `Failed`.
    """

    info: ModelInfo

    def submit(self, call: Call | ScoreCall, on_event: OnEvent) -> None:
        """Start a call. Never blocks; where the engine is gone or the id is in use, `on_event` is called before it returns."""

    def abort(self, call_id: str) -> None:
        """End a call at the engine's next step; it gets its `Failed`. Unknown ids are ignored."""

    def end_program(self, program: str, namespace: str = "") -> None:
        """The run of this name (see `Hints.program`) sends no more calls: what it alone has in the cache goes first."""

    def stats(self) -> "Future[EngineStats]":
        """Where the engine stands, after its current step. Fails with EngineDead where it is gone."""

    def flush_cache(self) -> "Future[int]":
        """Forget cached prefixes that no call uses; the number of pages freed."""

    def dump_cache(self) -> "Future[CacheDump]":
        """What the radix tree holds. Walks all of it, and holds the engine up meanwhile: for people, not for monitoring."""

    def load_adapter(self, name: str, folder: str, *, replace: bool = False, within: tuple[str, ...] = ()) -> "Future[None]":
        """Read the adapter in `folder`, which calls can name when this is done; with `replace` in place of another of its name.
        With `within`, from inside of these folders alone. Fails with InvalidRequest telling why it can't be served.
        """

    def unload_adapter(self, name: str) -> "Future[None]":
        """Take an adapter's name away; calls that have begun go on. Fails with UnknownModel."""

    def close(self) -> None:
        """End the engine; open calls fail as aborted. Waits for the end; may be called again."""

    @property
    def dead(self) -> EngineDead | None:
        """Why the engine ended by itself; None while it runs and after an orderly `close`."""

    def on_death(self, callback: Callable[[EngineDead], None]) -> None:
        """Have `callback` called once, on any thread, when the engine ends by itself (at once where it has)."""


class OpenCalls:
    """Who waits for what. Thread-safe; callbacks are called without holding the lock.

    `abort` is told of a call whose callback raised: nobody reads it any more.
    """

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._lock = threading.Lock()
        self._calls: dict[str, OnEvent] = {}
        self._asks: dict[int, Future[Answer]] = {}
        self._numbers = itertools.count()
        self._gone: EngineDead | None = None
        self._watchers: list[Callable[[EngineDead], None]] = []
        self.dead: EngineDead | None = None

    def open(self, call: Call | ScoreCall, on_event: OnEvent) -> bool:
        """Expect the events of `call`. False, with the call failed, where there is no engine or its id is in use."""
        with self._lock:
            gone = self._gone
            used = call.id in self._calls
            if gone is None and not used:
                self._calls[call.id] = on_event
                return True
        refusal: RuntimeFailure | InvalidRequest | None = gone
        if refusal is None:
            message = f"A call with id {call.id[:80]!r} is still running; give each call an id of its own."
            refusal = InvalidRequest(message, param="id")
        on_event(Failed(call.id, refusal.kind, str(refusal), refusal.param))
        return False

    def ask(self) -> tuple[int, "Future[Answer]"]:
        """A number for a question and the future of its answer, which has failed already where there is no engine."""
        future: Future[Answer] = Future()
        with self._lock:
            number, gone = next(self._numbers), self._gone
            if gone is None:
                self._asks[number] = future
        if gone is not None:
            future.set_exception(gone)
        return number, future

    def dispatch(self, reports: Iterable[Report]) -> None:
        """Hand reports to who waits for them; a terminal event closes its call."""
        for report in reports:
            if isinstance(report, Answer):
                with self._lock:
                    future = self._asks.pop(report.number, None)
                if future is not None and future.set_running_or_notify_cancel():
                    _settle(future, report)
                continue
            ends = isinstance(report, Completed | Scored | Failed)
            with self._lock:
                on_event = self._calls.pop(report.id, None) if ends else self._calls.get(report.id)
            if on_event is not None:
                self._tell(on_event, report)

    def end(self, error: EngineDead, *, by_itself: bool) -> None:
        """The engine is gone: whatever is open fails with `error`, and whatever comes later."""
        with self._lock:
            if self._gone is not None:
                return
            self._gone = error
            self.dead = error if by_itself else None
            calls, self._calls = self._calls, {}
            asks, self._asks = self._asks, {}
            watchers, self._watchers = self._watchers, []
        for call_id, on_event in calls.items():
            self._tell(on_event, Failed(call_id, error.kind, str(error)))
        for future in asks.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        for watcher in watchers if by_itself else ():
            watcher(error)

    def watch(self, callback: Callable[[EngineDead], None]) -> None:
        """See `EngineClient.on_death`."""
        with self._lock:
            if self._gone is None:
                self._watchers.append(callback)
                return
        if self.dead is not None:
            callback(self.dead)

    def _tell(self, on_event: OnEvent, event: Event) -> None:
        try:
            on_event(event)
        except Exception:  # the boundary of one request: its reader is broken, the others are not
            logging.getLogger(__name__).exception("The reader of call %s failed; the call is aborted.", event.id)
            with self._lock:
                known = self._calls.pop(event.id, None)
            if known is not None:
                self._abort(event.id)


def _settle(future: "Future[Answer]", answer: Answer) -> None:
    """Let who asked have the answer, or the failure that it tells of."""
    if answer.failed is None:
        future.set_result(answer)
    else:
        future.set_exception(error_from(answer.failed.kind, answer.failed.message, answer.failed.param))
