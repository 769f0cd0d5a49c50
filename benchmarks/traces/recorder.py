"""Stands between the language and an engine, and writes down what is asked of it: the calls, their order, their answers."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from branchpoint.runtime.client import EngineClient, OnEvent
from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed, SampleFinished, ScoreCall, Scored, Usage
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = ["Answered", "Recorder", "watched"]


@dataclass(eq=False)
class Answered:
    """A call, and what came of it. `waits_for` are the earlier calls that it could not have been made without.

    `computed` is prompt and output as far as their KV is known to have been computed.
    """

    call: Call | ScoreCall
    waits_for: "tuple[Answered, ...]" = ()
    output: list[int] = field(default_factory=list)
    ended_by_length: bool = False
    usage: Usage | None = None

    @property
    def computed(self) -> tuple[int, ...]:
        """The last token of an output that its length ended was never fed."""
        return (*self.call.prompt, *(self.output[:-1] if self.ended_by_length else self.output))

    def take(self, event: Event) -> bool:
        """Write down `event`; whether it is the last. Raises RuntimeError where the call failed."""
        if isinstance(event, Delta):
            self.output.extend(event.tokens)
        elif isinstance(event, SampleFinished):
            self.ended_by_length = event.reason == "length"
        elif isinstance(event, Completed | Scored):
            self.usage = event.usage
            return True
        elif isinstance(event, Failed):
            raise RuntimeError(f"A benchmark's call failed: {event.message}")
        return False


def watched(answered: Answered, then: Callable[[], None], on_event: OnEvent | None = None) -> OnEvent:
    """A callback that writes events down and calls `then` after the last; `on_event` hears of each afterwards."""

    def take(event: Event) -> None:
        if answered.take(event):
            then()
        if on_event is not None:
            on_event(event)

    return take


class Recorder:
    """An `EngineClient` that is another one and remembers. `log` has calls as they were made and as they ended, in order."""

    def __init__(self, client: EngineClient) -> None:
        self.info = client.info
        self.log: list[tuple[str, Answered]] = []
        self._client = client
        self._lock = threading.Lock()

    @property
    def calls(self) -> list[Answered]:
        """The calls in the order in which they were made."""
        return [answered for what, answered in self.log if what == "made"]

    def forget(self) -> None:
        """Begin anew."""
        self.log = []

    def submit(self, call: Call | ScoreCall, on_event: OnEvent) -> None:
        """See `EngineClient`."""
        with self._lock:
            ended = [other for what, other in self.log if what == "ended"]
            answered = Answered(call, tuple(other for other in ended if _precedes(other.call, call)))
            self.log.append(("made", answered))
        self._client.submit(call, watched(answered, lambda: self.log.append(("ended", answered)), on_event))

    def abort(self, call_id: str) -> None:
        """See `EngineClient`."""
        self._client.abort(call_id)

    def stats(self) -> "Future[EngineStats]":
        """See `EngineClient`."""
        return self._client.stats()

    def end_program(self, program: str, namespace: str = "") -> None:
        """See `EngineClient`."""
        self._client.end_program(program, namespace)

    def dump_cache(self) -> "Future[CacheDump]":
        """See `EngineClient`."""
        return self._client.dump_cache()

    def flush_cache(self) -> "Future[int]":
        """See `EngineClient`."""
        return self._client.flush_cache()

    def close(self) -> None:
        """See `EngineClient`."""
        self._client.close()

    @property
    def dead(self) -> EngineDead | None:
        """See `EngineClient`."""
        return self._client.dead

    def on_death(self, callback: Callable[[EngineDead], None]) -> None:
        """See `EngineClient`."""
        self._client.on_death(callback)


def _precedes(earlier: Call | ScoreCall, later: Call | ScoreCall) -> bool:
    """Whether a client would have waited for `earlier`, which had ended: only branches of one fork don't wait for each other."""
    if earlier.hints.program != later.hints.program:
        return False
    for place, (one, other) in enumerate(zip(earlier.hints.path, later.hints.path, strict=False)):
        if one != other:
            return place % 2 == 0  # a path alternates the number of a fork and that of a branch
    return True
