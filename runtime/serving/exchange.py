"""The calls of one request on their way through the engine, and the events that come back.

Made by the gateway, read by `answer`. Leaving it ends every call that still runs, in whatever phase it is.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

import msgspec

from branchpoint.errors import BranchpointError
from branchpoint.runtime.client import OnEvent
from branchpoint.runtime.errors import CapacityError, InvalidRequest, error_from
from branchpoint.runtime.messages import (
    Call,
    Completed,
    Delta,
    Event,
    Failed,
    FinishReason,
    SampleFinished,
    ScoreCall,
    Scored,
    Usage,
)

__all__ = ["NO_NAMES", "Exchange"]

NO_NAMES: Final[Mapping[str | None, str]] = {}

MERGE_FROM = 256
"""Events that may wait for a reader; beyond, deltas of one sample become one, so that a slow reader costs little memory."""


class Exchange:
    """A context: entering submits `calls`, leaving aborts those that haven't ended. Belongs to one event loop.

    The engine gets the calls under ids of their own, so that no request can meet, or end, the calls of another; events carry
    the callers' ids again. `params` are the request's names for the options that the engine names when it refuses a call (None:
    a refusal that names none). `usages` are those of the calls that completed, `reasons` those of the samples that ended,
    `output_tokens` counts what has come. `on_first` is called once: at the first event, or at the end where none came.
    """

    def __init__(
        self,
        submit: Callable[[Call | ScoreCall, OnEvent], None],
        abort: Callable[[str], None],
        calls: tuple[Call | ScoreCall, ...],
        on_exit: Callable[[], None],
        *,
        number: int = 0,
        params: Mapping[str | None, str] = NO_NAMES,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        self.usages = list[Usage]()
        self.reasons = list[FinishReason]()
        self.output_tokens = 0
        self.touched = False
        self._on_first = on_first
        self._end: BranchpointError | None = None
        self._latest = dict[tuple[int, int], int]()
        self._taken = 0
        self._submit = submit
        self._abort = abort
        self._calls = calls
        self._ids = tuple(f"{call.id}#{number}" for call in calls)
        self._params = params
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._arrived = deque[tuple[int, Event]]()
        self._running = set(range(len(calls)))
        self._wake = asyncio.Event()
        self._closed = False

    def __enter__(self) -> Self:
        try:
            for index, call in enumerate(self._calls):
                self._submit(msgspec.structs.replace(call, id=self._ids[index]), self._listener(index))
        except BaseException:  # no `with` block is entered: nobody else would close it
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    async def batch(self) -> list[tuple[int, Event]]:
        """All events that are there, at least one, each with its call's place in `calls`; empty once every call has ended.

        Raises what failed, after everything that came before it was returned. Waiting costs no CPU.
        """
        while not self._arrived:
            if self._end is not None:
                raise self._end
            if not self._running:
                return []
            self._wake.clear()
            await self._wake.wait()
        ready = list[tuple[int, Event]]()
        while self._arrived:
            index, event = self._arrived[0]
            failure = self._failure(event)
            if failure is not None:
                if ready:
                    break
                raise failure
            self._arrived.popleft()
            self._taken += 1
            if isinstance(event, Completed | Scored):
                self._running.discard(index)
                self.usages.append(event.usage)
            elif isinstance(event, SampleFinished):
                self.reasons.append(event.reason)
            ready.append((index, event))
        return ready

    def fail(self, error: BranchpointError) -> None:
        """End the request from this side, at once; whoever reads it gets the error after the events that are already there."""
        if self._end is None:
            self._end = error
            self._abort_running()
            self._wake.set()

    def _listener(self, index: int) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:  # on the engine's thread
            try:
                self._loop.call_soon_threadsafe(self._take, index, event)
            except RuntimeError:  # the loop is closed: nobody is left to read it
                return

        return on_event

    def _take(self, index: int, event: Event) -> None:
        if self._closed or self._end is not None:
            return
        self._touch()
        if isinstance(event, Delta):
            self.output_tokens += len(event.tokens)
            if self._merged(index, event):
                return
            self._latest[index, event.index] = self._taken + len(self._arrived)
        self._arrived.append((index, msgspec.structs.replace(event, id=self._calls[index].id)))
        self._wake.set()

    def _merged(self, index: int, event: Delta) -> bool:
        """Whether the delta became part of one of its sample's that still waits: only where many do."""
        place = self._latest.get((index, event.index), -1) - self._taken
        if len(self._arrived) < MERGE_FROM or place < 0:
            return False
        _, before = self._arrived[place]
        assert isinstance(before, Delta), "the latest delta's place holds a delta"
        self._arrived[place] = index, _joined(before, event)
        return True

    def _touch(self) -> None:
        if not self.touched:
            self.touched = True
            self._on_first()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._touch()
        self._abort_running()
        self._arrived.clear()
        self._on_exit()

    def _abort_running(self) -> None:
        for index in self._running:
            self._abort(self._ids[index])
        self._running.clear()

    def _failure(self, event: Event) -> Exception | None:
        """The error that an event stands for, if any. A sample that was cut by the engine fails its request."""
        if isinstance(event, Failed):
            blames_caller = event.kind in (InvalidRequest.kind, CapacityError.kind)
            param = self._params.get(event.param, event.param) if blames_caller else event.param
            return error_from(event.kind, event.message, param)
        if isinstance(event, SampleFinished) and event.reason in ("abort", "error"):
            kind = "aborted" if event.reason == "abort" else "internal"
            return error_from(kind, f"Sample {event.index} of the request ended early: {event.stop or event.reason}.")
        return None


def _joined(first: Delta, second: Delta) -> Delta:
    return Delta(first.id, first.index, first.text + second.text, first.tokens + second.tokens, first.logprobs + second.logprobs)
