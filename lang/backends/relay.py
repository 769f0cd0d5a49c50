"""Carries an engine's events from its thread to whoever waits: an event loop (`Relay`) or a plain thread (`waiting`).

Used by `engine.py`. A burst of events, of however many calls, wakes a loop once. Leaving early aborts what still runs.
"""

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence

from branchpoint.lang.backends.generation import checked
from branchpoint.lang.errors import CallCancelled
from branchpoint.runtime.messages import Call, Completed, Event, Failed, ScoreCall, Scored, Usage

__all__ = ["Abort", "Relay", "Submit", "waiting"]

Submit = Callable[[Call | ScoreCall, Callable[[Event], None]], None]
Abort = Callable[[str], None]
_LONGEST_END = 5.0  # seconds that an engine has to answer an abort; it takes one step


class _Inbox:
    """What arrived for one reader. Belongs to its loop."""

    def __init__(self) -> None:
        self.arrived = deque[Event]()
        self._wake = asyncio.Event()

    def take(self, event: Event) -> None:
        self.arrived.append(event)
        self._wake.set()

    async def next(self) -> Event:
        while not self.arrived:
            self._wake.clear()
            await self._wake.wait()
        return self.arrived.popleft()


class Relay:
    """Hands events to one event loop. Made and read there; fed from any thread."""

    def __init__(self, submit: Submit, abort: Abort) -> None:
        self.loop = asyncio.get_running_loop()
        self._submit = submit
        self._abort = abort
        self._lock = threading.Lock()
        self._burst: list[tuple[_Inbox, Event]] = []

    async def events(self, calls: Sequence[Call | ScoreCall]) -> AsyncGenerator[Event, None]:
        """Start `calls`, give their events until each has its terminal one. Raises what failed; CallCancelled when cancelled."""
        inbox = _Inbox()
        running = {call.id for call in calls}
        try:
            for call in calls:
                self._submit(call, lambda event: self._put(inbox, event))
            while running:
                event = await inbox.next()
                _settle(running, event)
                yield event
        except asyncio.CancelledError:
            raise CallCancelled(await self._end(running, inbox)) from None
        finally:
            for call_id in running:
                self._abort(call_id)

    async def _end(self, running: set[str], inbox: _Inbox) -> Usage:
        """Abort the calls, wait until the engine has ended them (or is stuck), and give what they had cost, as far as known."""
        open_calls = set(running)
        running.clear()
        for call_id in open_calls:
            self._abort(call_id)
        usage = Usage()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_END):
                while open_calls:
                    event = await inbox.next()
                    if isinstance(event, Completed | Scored | Failed):
                        open_calls.discard(event.id)
                        usage += event.usage
        return usage

    def _put(self, inbox: _Inbox, event: Event) -> None:
        with self._lock:
            self._burst.append((inbox, event))
            if len(self._burst) > 1:
                return  # the loop was woken, and hasn't looked yet
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to read it
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            burst, self._burst = self._burst, []
        for inbox, event in burst:
            inbox.take(event)


def waiting(submit: Submit, abort: Abort, calls: Sequence[Call | ScoreCall]) -> Generator[Event, None, None]:
    """As `Relay.events`, for a thread that blocks between events."""
    arrived = queue.SimpleQueue[Event]()
    running = {call.id for call in calls}
    try:
        for call in calls:
            submit(call, arrived.put)
        while running:
            event = arrived.get()
            _settle(running, event)
            yield event
    finally:
        for call_id in running:
            abort(call_id)


def _settle(running: set[str], event: Event) -> None:
    """Note the end of a call. Raises what failed."""
    if isinstance(event, Completed | Scored | Failed):
        running.discard(event.id)
    checked(event)
