"""The life of the API process: bind, load the model, serve, drain, and the exit status that says how it ended.

Called by `branchpoint serve`. The port is taken before the model is loaded (a second server on it fails at once), and answers
503 until the model is there.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import EngineDead, InvalidRequest
from branchpoint.runtime.serving.app import Endpoint, build_app
from branchpoint.runtime.serving.gateway import Gateway, Loaded, State, shutting_down
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.traces import Traces

__all__ = ["Loading", "PortTaken", "Server", "bind"]

logger = logging.getLogger("branchpoint.serving")

LAST_BYTES_SECONDS = 5
IDLE_SECONDS = 60
BACKOFF_SECONDS = 1.0
HEALTHY_SECONDS = 3600.0
"""After so long an engine's death counts as its first again."""

GONE_MILLISECONDS = 120_000


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
    with contextlib.suppress(OSError, AttributeError):  # Linux: connections inherit it; a reader that is gone for good is closed
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MILLISECONDS)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise PortTaken(f"Can't listen on {host}:{port}: {error.strerror or error}. Choose another --host or --port.") from error
    listener.setblocking(False)
    return listener


@dataclass(frozen=True, slots=True)
class Loading:
    """How the model comes: `load` builds engine and tokenizer, on a thread; `give_up` makes it fail soon."""

    load: Callable[[], Loaded]
    give_up: Callable[[], None]


class Server:
    """One run of the server; `tell` prints what operators should see. Made and run in one event loop."""

    def __init__(
        self, options: ServerOptions, loading: Loading, tell: Callable[[str], None], more: Sequence[Endpoint] = ()
    ) -> None:
        self._options = options
        self._more = more
        self._loading = loading
        self._tell = tell
        self._stop = asyncio.Event()
        self._now = asyncio.Event()

    async def run(self, listener: socket.socket, traces: Traces | None = None) -> int:
        """Serve until a signal (0), or until the engine dies and has no restart left (1).

        Raises BranchpointError where the model can't be loaded.
        """
        gateway = Gateway(self._options, traces)
        config = uvicorn.Config(
            build_app(gateway, self._options, self._more),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=LAST_BYTES_SECONDS,
            timeout_keep_alive=IDLE_SECONDS,
            **_tls(self._options),
        )
        web = _Uvicorn(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        self._tell("Loading the model…")
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        try:
            return await self._live(gateway, listener, serving)
        finally:
            web.should_exit = True
            web.force_exit = self._now.is_set()
            await serving
            gateway.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        (self._now if self._stop.is_set() else self._stop).set()

    async def _live(self, gateway: Gateway, listener: socket.socket, serving: asyncio.Task[None]) -> int:
        loaded = await self._loaded()
        restarts = self._options.restarts
        while loaded is not None:
            began = time.monotonic()
            if await self._serve(gateway, loaded, listener, serving):
                return 0
            if time.monotonic() - began > HEALTHY_SECONDS:
                restarts = self._options.restarts
            if not restarts or self._stop.is_set():
                gateway.state = State.DEAD
                return 1
            restarts -= 1
            loaded = await self._again(BACKOFF_SECONDS * 2 ** (self._options.restarts - restarts - 1))
        return 0 if self._stop.is_set() else 1

    async def _serve(self, gateway: Gateway, loaded: Loaded, listener: socket.socket, serving: asyncio.Task[None]) -> bool:
        """Serve with this engine until a signal (true), or until it dies; then its requests have had their answers."""
        loop, died = asyncio.get_running_loop(), asyncio.Event()

        def on_death(_error: EngineDead) -> None:  # on a thread of the client
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended already
                loop.call_soon_threadsafe(died.set)

        try:
            loaded.engine.on_death(on_death)
            gateway.attach(loaded)
            self._announce(loaded, listener)
            await _first(self._stop.wait(), died.wait(), asyncio.shield(serving))
            if self._stop.is_set():
                await self._drain(gateway, died)
            if not died.is_set():
                return True
            gateway.state = State.LOADING
            self._tell(f"{loaded.engine.dead or 'The engine is gone.'} Open requests are answered with this error.")
            gateway.requests.fail_all(EngineDead("The engine died while it worked on this request."))
            await gateway.requests.idle(LAST_BYTES_SECONDS)
            return False
        finally:
            await asyncio.to_thread(loaded.engine.close)

    async def _again(self, seconds: float) -> Loaded | None:
        """The model once more, after a while; None where a signal came first, or it can't be loaded any more."""
        self._tell(f"The engine starts again in {seconds:g} s.")
        await _first(asyncio.sleep(seconds), self._stop.wait())
        if self._stop.is_set():
            return None
        try:
            return await self._loaded()
        except BranchpointError as error:
            self._tell(f"The engine couldn't start again: {error}")
            return None

    async def _loaded(self) -> Loaded | None:
        """The model; None where a signal came first."""
        loading = asyncio.create_task(asyncio.to_thread(self._loading.load))
        await _first(asyncio.shield(loading), self._stop.wait())
        if self._stop.is_set():
            self._tell("Stopped while the model was loading.")
            self._loading.give_up()
            with contextlib.suppress(BranchpointError):
                await asyncio.to_thread((await loading).engine.close)
            return None
        return await loading

    async def _drain(self, gateway: Gateway, died: asyncio.Event) -> None:
        seconds = self._options.shutdown_timeout
        if gateway.num_open:
            self._tell(f"Draining: {gateway.num_open} requests may run on for {seconds:g} s; a second signal ends them now.")
        await _first(gateway.drain(seconds), self._now.wait(), died.wait())
        gateway.requests.fail_all(shutting_down())
        await gateway.requests.idle(LAST_BYTES_SECONDS)

    def _announce(self, loaded: Loaded, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        info = loaded.info
        tokens = info.num_pages * info.page_size
        whole = f"{tokens / info.context_length:,.1f} sequences of the whole context of {info.context_length:,}"
        pool = f"{tokens:,} tokens of KV: {whole}"
        if loaded.longest < info.context_length:
            self._tell(f"Requests of more than {loaded.longest:,} tokens are refused: the KV pool holds less than the context.")
        scheme = "http" if self._options.ssl_certfile is None else "https"
        self._tell(f"Ready: {loaded.names[0]} on {scheme}://{f'[{host}]' if ':' in host else host}:{port} ({pool})")


def _tls(options: ServerOptions) -> dict[str, Any]:
    """uvicorn's options for HTTPS. Raises InvalidRequest where certificate and key can't be used."""
    if options.ssl_certfile is None:
        return {}
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password=_no_password)
        if options.ssl_ca_certs is not None:
            ssl.create_default_context(cafile=options.ssl_ca_certs)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidRequest(f"The TLS certificate can't be used: {error}.", param="ssl_certfile") from error
    asked = {"ssl_certfile": options.ssl_certfile, "ssl_keyfile": options.ssl_keyfile}
    if options.ssl_ca_certs is None:
        return asked
    return asked | {"ssl_ca_certs": options.ssl_ca_certs, "ssl_cert_reqs": ssl.CERT_REQUIRED}


def _no_password() -> str:
    raise ValueError("the private key is encrypted; give one that isn't, readable by this server only")


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for one of `waits`, and end the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
