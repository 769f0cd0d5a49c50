"""The life of one model in the server: load it, serve it, start its engine again where it dies, drain it at the end.

Run by `server`, one for each model; `Turns` is what they share. One model is loaded at a time, since each measures the memory
that is left.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.serving.gateway import Gateway, Loaded, State, shutting_down

__all__ = ["LAST_BYTES_SECONDS", "Loading", "ModelLife", "Turns", "first_of"]

LAST_BYTES_SECONDS = 5
BACKOFF_SECONDS = 1.0
HEALTHY_SECONDS = 3600.0
"""After so long an engine's death counts as its first again."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How a model comes: `load` builds engine and tokenizer, on a thread; `give_up` makes it fail soon.

    `names` are what clients may call it, as far as that is known before.
    """

    load: Callable[[], Loaded]
    give_up: Callable[[], None]
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turns:
    """What the lives of one server share: `stop` is set to drain, `now` to end at once, `gone` once nobody listens any more."""

    tell: Callable[[str], None]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    now: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelLife:
    """One model's. `ready` is called each time that it can serve."""

    def __init__(self, gateway: Gateway, loading: Loading, turns: Turns, ready: Callable[[Loaded], None]) -> None:
        self._gateway = gateway
        self._options = gateway.settings
        self._loading = loading
        self._turns = turns
        self._ready = ready

    async def run(self) -> bool:
        """Live until the server stops (true), or until the engine dies and has no restart left (false).

        Raises BranchpointError where the model can't be loaded the first time.
        """
        loaded = await self._loaded()
        restarts = self._options.restarts
        while loaded is not None:
            began = time.monotonic()
            if await self._serve(loaded):
                return True
            if time.monotonic() - began > HEALTHY_SECONDS:
                restarts = self._options.restarts
            if not restarts or self._turns.stop.is_set():
                self._gateway.state = State.DEAD
                return False
            restarts -= 1
            loaded = await self._again(BACKOFF_SECONDS * 2 ** (self._options.restarts - restarts - 1))
        return self._turns.stop.is_set()

    async def _serve(self, loaded: Loaded) -> bool:
        """Serve with this engine until the server stops (true), or until it dies; then its requests have had their answers."""
        loop, died, turns = asyncio.get_running_loop(), asyncio.Event(), self._turns

        def on_death(_error: EngineDead) -> None:  # on a thread of the client
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended already
                loop.call_soon_threadsafe(died.set)

        try:
            loaded.engine.on_death(on_death)
            with contextlib.suppress(EngineDead):  # dead already: what follows sees it
                await self._gateway.adapters.restore(loaded.engine, loaded.adapters)
            self._gateway.attach(loaded)
            self._ready(loaded)
            await first_of(turns.stop.wait(), died.wait(), turns.gone.wait())
            if turns.stop.is_set():
                await self._drain(died)
            if not died.is_set():
                return True
            self._gateway.state = State.LOADING
            turns.tell(f"{loaded.engine.dead or 'The engine is gone.'} Open requests are answered with this error.")
            self._gateway.requests.fail_all(EngineDead("The engine died while it worked on this request."))
            await self._gateway.requests.idle(LAST_BYTES_SECONDS)
            return False
        finally:
            await asyncio.to_thread(loaded.engine.close)

    async def _again(self, seconds: float) -> Loaded | None:
        """The model once more, after a while; None where the server stops first, or it can't be loaded any more."""
        self._turns.tell(f"The engine starts again in {seconds:g} s.")
        await first_of(asyncio.sleep(seconds), self._turns.stop.wait())
        if self._turns.stop.is_set():
            return None
        try:
            return await self._loaded()
        except BranchpointError as error:
            self._turns.tell(f"The engine couldn't start again: {error}")
            return None

    async def _loaded(self) -> Loaded | None:
        """The model; None where the server stops first."""
        stop = self._turns.stop
        async with self._turns.loading:
            if stop.is_set():
                return None
            loading = asyncio.create_task(asyncio.to_thread(self._loading.load))
            await first_of(asyncio.shield(loading), stop.wait())
            if not stop.is_set():
                return await loading
            self._turns.tell("Stopped while the model was loading.")
            self._loading.give_up()
            with contextlib.suppress(BranchpointError):
                await asyncio.to_thread((await loading).engine.close)
            return None

    async def _drain(self, died: asyncio.Event) -> None:
        gateway, seconds = self._gateway, self._options.shutdown_timeout
        if gateway.num_open:
            told = f"Draining: {gateway.num_open} requests may run on for {seconds:g} s; a second signal ends them now."
            self._turns.tell(told)
        await first_of(gateway.drain(seconds), self._turns.now.wait(), died.wait())
        gateway.requests.fail_all(shutting_down())
        await gateway.requests.idle(LAST_BYTES_SECONDS)


async def first_of(*waits: Awaitable[object]) -> None:
    """Wait for one of `waits`, and end the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
