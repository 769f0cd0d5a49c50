"""The life of the API process: bind, load the model, serve, drain, and the exit status that says how it ended.

Called by `branchpoint serve`. The port is taken before the model is loaded (a second server on it fails at once), and answers
503 until the model is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from branchpoint.errors import BranchpointError
from branchpoint.runtime.serving.app import build_app
from branchpoint.runtime.serving.gateway import Gateway, Loaded, State
from branchpoint.runtime.serving.options import ServerOptions

if TYPE_CHECKING:
    pass

__all__ = ["PortTaken", "Server", "bind"]

logger = logging.getLogger("branchpoint.serving")

LAST_BYTES_SECONDS = 5
WATCH_SECONDS = 0.1


class PortTaken(BranchpointError, OSError):
    """Another process listens where this server should."""


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: a signal drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `Server`."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises PortTaken where the address can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortTaken(f"Can't listen on {host}:{port}: {error.strerror or error}. Choose another --host or --port.") from error
    listener.setblocking(False)
    return listener


class Server:
    """One run of the server. `load` builds the engine and its tokenizer, on a thread; `tell` prints what operators should see."""

    def __init__(self, options: ServerOptions, load: Callable[[], Loaded], tell: Callable[[str], None]) -> None:
        self._options = options
        self._load = load
        self._tell = tell
        self._stop = asyncio.Event()
        self._now = asyncio.Event()

    async def run(self, listener: socket.socket) -> int:
        """Serve until a signal (0), or until the engine dies (1). Raises BranchpointError where the model can't be loaded."""
        gateway = Gateway()
        config = uvicorn.Config(
            build_app(gateway, self._options),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=LAST_BYTES_SECONDS,
        )
        web = _Uvicorn(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        try:
            return await self._live(gateway, listener, serving)
        finally:
            web.should_exit = True
            web.force_exit = self._now.is_set()
            await serving
            gateway.close()

    def _signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        (self._now if self._stop.is_set() else self._stop).set()

    async def _live(self, gateway: Gateway, listener: socket.socket, serving: asyncio.Task[None]) -> int:
        loaded = await self._loaded()
        if loaded is None:
            return 0
        try:
            gateway.attach(loaded)
            self._announce(loaded, listener)
            while not (self._stop.is_set() or loaded.engine.dead or serving.done()):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), WATCH_SECONDS)
            if not self._stop.is_set():
                gateway.state = State.DEAD
                gateway.fail_all("engine_dead", "The engine died; the server is going down.")
                self._tell("The engine died; every open request was answered with an error.")
                await gateway.idle(LAST_BYTES_SECONDS)
                return 1
            await self._drain(gateway)
            return 0
        finally:
            await asyncio.to_thread(loaded.engine.close)

    async def _loaded(self) -> Loaded | None:
        """The model; None where a signal came first."""
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if loading.done():
            return await loading
        self._tell("Stopped while the model was loading.")
        (await loading).engine.close()
        return None

    async def _drain(self, gateway: Gateway) -> None:
        seconds = self._options.shutdown_timeout
        if gateway.num_open:
            self._tell(f"Draining: {gateway.num_open} requests may run on for {seconds:g} s; a second signal ends them now.")
        draining = asyncio.create_task(gateway.drain(seconds))
        hurry = asyncio.create_task(self._now.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not draining.done():
            draining.cancel()
            gateway.fail_all("overloaded", "The server is shutting down.")
        await gateway.idle(LAST_BYTES_SECONDS)

    def _announce(self, loaded: Loaded, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        info = loaded.info
        pool = f"{info.num_pages * info.page_size:,} tokens of KV, context {info.context_length:,}"
        self._tell(f"Ready: {loaded.names[0]} on http://{f'[{host}]' if ':' in host else host}:{port} ({pool})")
