"""The calls of programs that run in the server, as requests of their callers: what `EngineBackend` takes for an engine there.

Called from the programs' event loop; the gateway is asked in the server's own.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus

import msgspec

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.messages import Call, Event, Failed, ModelInfo, ScoreCall
from branchpoint.runtime.serving.errors import ApiError, api_error
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.serving.record import RequestRecord
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = ["PROGRAMS_PATH", "GatewayClient"]

PROGRAMS_PATH = "/v1/programs"

_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class GatewayClient:
    """An engine client of one gateway. A run is known by the namespace that `enter` gives it: its caller, salt and adapter lie
    behind.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._spaces = dict[str, tuple[Caller, str, str]]()
        self._programs = dict[str, tuple[Caller, str]]()  # of runs that have made a call
        self._tasks = dict[str, asyncio.Task[None]]()
        self.info: ModelInfo = gateway.loaded.info

    @property
    def dead(self) -> EngineDead | None:
        """See the engine's own client."""
        return self._gateway.loaded.engine.dead

    def enter(self, caller: Caller, salt: str, adapter: str = "") -> str:
        """A namespace for the run of `caller`."""
        space = secrets.token_hex(8)
        self._spaces[space] = (caller, salt, adapter)
        return space

    def leave(self, space: str) -> None:
        """The run is over."""
        del self._spaces[space]

    def submit(self, call: Call | ScoreCall, on_event: Callable[[Event], None]) -> None:
        """Start a call; exactly one terminal event comes. Thread-safe."""
        self._loop.call_soon_threadsafe(self._start, call, on_event)

    def abort(self, call_id: str) -> None:
        """End a call; unknown ones are passed over. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._loop.call_soon_threadsafe(self._stop, call_id)

    def _start(self, call: Call | ScoreCall, on_event: Callable[[Event], None]) -> None:
        task = self._tasks[call.id] = self._loop.create_task(self._carry(call, on_event))
        task.add_done_callback(lambda task: self._ended(call.id, on_event, aborted=task.cancelled()))

    def _ended(self, call_id: str, on_event: Callable[[Event], None], *, aborted: bool) -> None:
        """The task of a call is over; one that was aborted may not have begun."""
        del self._tasks[call_id]
        if aborted:
            on_event(Failed(call_id, "aborted", "The call was aborted."))

    def _stop(self, call_id: str) -> None:
        if (task := self._tasks.get(call_id)) is not None:
            task.cancel()

    async def _carry(self, call: Call | ScoreCall, on_event: Callable[[Event], None]) -> None:
        caller, salt, adapter = self._spaces[call.namespace]
        if call.hints.program:
            self._programs[call.hints.program] = (caller, salt)
        own = msgspec.structs.replace(call, namespace=salt)
        try:
            record = RequestRecord(call.id, PROGRAMS_PATH, caller.name, adapter or self._gateway.name, True, "", (own,))
            with self._gateway.open(record, caller=caller, adapter=adapter) as exchange:
                while batch := await exchange.batch():
                    for _, event in batch:
                        on_event(event)
        except BranchpointError as error:
            on_event(_failed(call.id, error))
        except Exception as error:  # noqa: BLE001  # the boundary of one call: whatever happens, its program is told
            on_event(Failed(call.id, "internal", f"{type(error).__name__}: {error}"))

    def end_program(self, program: str, namespace: str = "") -> None:
        """A run is over, in its caller's namespace. Never raises: the run still has to tell what it came to."""
        with contextlib.suppress(RuntimeError):  # as in `abort`
            self._loop.call_soon_threadsafe(self._end, program)

    def _end(self, program: str) -> None:
        known = self._programs.pop(program, None)
        if known is not None:
            caller, salt = known
            with contextlib.suppress(ApiError):  # no engine serves, perhaps until another begins with an empty cache
                self._gateway.loaded.engine.end_program(program, caller.space(salt))

    def stats(self) -> "Future[EngineStats]":
        """See the engine's own client."""
        return self._gateway.loaded.engine.stats()

    def dump_cache(self) -> "Future[CacheDump]":
        """See the engine's own client."""
        return self._gateway.loaded.engine.dump_cache()

    def flush_cache(self) -> "Future[int]":
        """See the engine's own client."""
        return self._gateway.loaded.engine.flush_cache()

    def load_adapter(self, name: str, folder: str, *, replace: bool = False, within: tuple[str, ...] = ()) -> "Future[None]":
        """See the engine's own client."""
        return self._gateway.loaded.engine.load_adapter(name, folder, replace=replace, within=within)

    def unload_adapter(self, name: str) -> "Future[None]":
        """See the engine's own client."""
        return self._gateway.loaded.engine.unload_adapter(name)

    def on_death(self, callback: Callable[[EngineDead], None]) -> None:
        """The server tells of the engine's death itself."""

    def close(self) -> None:
        """The engine is the server's; nothing to close."""


def _failed(call_id: str, error: BranchpointError) -> Failed:
    kind = getattr(error, "kind", None)
    if isinstance(error, ApiError) or kind is None:
        status = api_error(error).status
        kind = "overloaded" if status in _BUSY else "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal"
    return Failed(call_id, kind, str(error), getattr(error, "param", None))
