"""Drives an engine: takes commands from an inbox, steps while there is work, hands out reports. Waiting costs no CPU.

Runs in the one thread that owns the engine, in this process (`EngineThread`) or in one of its own (`EngineProcess`).
"""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol

import msgspec

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import InvalidRequest, ModelError, RequestAborted, RuntimeFailure
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.messages import Abort, Call, Event, Failed, ProgramEnded, ScoreCall
from branchpoint.runtime.returns import Returns
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = [
    "Answer",
    "Ask",
    "Command",
    "Deliver",
    "HostedEngine",
    "Inbox",
    "LoadAdapter",
    "QueueInbox",
    "Report",
    "Shutdown",
    "UnloadAdapter",
    "run_engine",
]


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A question to the engine itself, answered by the `Answer` of the same number."""

    number: int
    what: Literal["stats", "flush_cache", "cache"]


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Read the adapter in `folder`, aside; the `Answer` of this number comes when calls can name it. See `lora.registry`."""

    number: int
    name: str
    folder: str
    replace: bool = False
    within: tuple[str, ...] = ()


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Take an adapter's name away, answered by the `Answer` of this number."""

    number: int
    name: str


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End every call as aborted, then the loop."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """What was asked: `stats`, for `flush_cache` the number of `pages` freed, the `cache`'s contents; or why it `failed`."""

    number: int
    stats: EngineStats | None = None
    pages: int = 0
    cache: CacheDump | None = None
    failed: Failed | None = None


Command = Call | ScoreCall | Abort | ProgramEnded | Ask | LoadAdapter | UnloadAdapter | Shutdown
Report = Event | Answer
Deliver = Callable[[list[Report]], None]


class HostedEngine(Protocol):
    """What the loop needs of `runtime.engine.Engine`."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to say."""

    @property
    def adapters(self) -> Adapters:
        """Those that calls may name."""

    def submit(self, call: Call | ScoreCall) -> None:
        """Accept a call, or raise."""

    def abort(self, call_id: str) -> None:
        """End a call."""

    def end_program(self, program: str, namespace: str = "") -> None:
        """No more calls of `program` will come."""

    def step(self) -> list[Event]:
        """Compute one batch."""

    def stats(self) -> EngineStats:
        """Where things stand."""

    def flush_cache(self) -> int:
        """Forget cached prefixes."""

    def dump_cache(self) -> CacheDump:
        """What the cache holds."""

    def fail_all(self, error: BranchpointError) -> list[Event]:
        """End every call."""

    def close(self) -> None:
        """End the engine's own threads."""


class Inbox(Protocol):
    """Where commands come from."""

    def take(self, *, wait: float | None) -> list[Command]:
        """All commands that are there, in order. Waits for one up to `wait` seconds; None: as long as it takes."""


class QueueInbox:
    """Commands from other threads of this process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Append a command; never blocks."""
        self._queue.put(command)

    def take(self, *, wait: float | None) -> list[Command]:
        """See `Inbox`."""
        commands: list[Command] = []
        if wait != 0.0:
            with suppress(queue.Empty):
                commands.append(self._queue.get(timeout=wait))
        while not self._queue.empty():
            commands.append(self._queue.get())
        return commands


def run_engine(engine: HostedEngine, inbox: Inbox, deliver: Deliver, *, clock: Callable[[], float] = time.perf_counter) -> None:
    """Serve until `Shutdown` comes. A call that is refused gets its `Failed`; what the engine itself raises ends the loop.

    `clock` gives seconds, for how long a step waits for what is about to come.
    """
    returns = Returns(clock)
    while True:
        reports: list[Report] = []
        for command in inbox.take(wait=returns.patience if engine.has_work else None):
            if isinstance(command, Shutdown):
                deliver([*reports, *engine.fail_all(RequestAborted("The engine was shut down."))])
                engine.close()
                return
            if isinstance(command, LoadAdapter):
                threading.Thread(target=_load_adapter, args=(engine, command, deliver), name="adapter", daemon=True).start()
                continue
            answers = _handle(engine, command)
            if not answers:
                returns.sent(command)
            reports += answers
        if reports:
            deliver(reports)
        if engine.has_work and not returns.patience:
            returns.began()
            events, seconds = _timed(engine.step, clock)
            if events:
                deliver([*events])
            returns.told(events, seconds)


def _timed(step: Callable[[], list[Event]], clock: Callable[[], float]) -> tuple[list[Event], float]:
    since = clock()
    return step(), clock() - since


def _load_adapter(engine: HostedEngine, command: LoadAdapter, deliver: Deliver) -> None:
    """Body of a thread: reading weights must not hold up steps."""

    def load() -> None:
        engine.adapters.load(command.name, command.folder, replace=command.replace, within=command.within)

    deliver([_changed(command.number, load)])


def _changed(number: int, change: Callable[[], None]) -> Answer:
    """The answer to a change of the adapters."""
    try:
        change()
    except (InvalidRequest, ModelError) as error:
        kind, param = getattr(error, "kind", InvalidRequest.kind), getattr(error, "param", "lora_path")
        return Answer(number, failed=Failed("", kind, str(error), param))
    except BaseException as error:  # noqa: BLE001  # the boundary of one request, the panics of what reads the file too
        return Answer(number, failed=Failed("", RuntimeFailure.kind, f"{type(error).__name__}: {str(error)[:500]}"))
    return Answer(number)


def _handle(engine: HostedEngine, command: Call | ScoreCall | Abort | ProgramEnded | Ask | UnloadAdapter) -> list[Report]:
    if isinstance(command, Abort):
        engine.abort(command.id)
        return []
    if isinstance(command, ProgramEnded):
        engine.end_program(command.program, command.namespace)
        return []
    if isinstance(command, UnloadAdapter):
        return [_changed(command.number, lambda: engine.adapters.unload(command.name))]
    if isinstance(command, Ask):
        if command.what == "stats":
            return [Answer(command.number, stats=engine.stats())]
        if command.what == "cache":
            return [Answer(command.number, cache=engine.dump_cache())]
        return [Answer(command.number, pages=engine.flush_cache())]
    try:
        engine.submit(command)
    except (InvalidRequest, RuntimeFailure) as error:
        return [Failed(command.id, error.kind, str(error), error.param)]
    except Exception as error:  # noqa: BLE001  # the boundary of one request: whatever it does, the others go on
        return [Failed(command.id, RuntimeFailure.kind, f"{type(error).__name__}: {str(error)[:500]}")]
    return []
