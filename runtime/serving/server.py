"""The life of the API process: bind, load the models, serve, drain, and the exit status that says how it ended.

Called by `branchpoint serve`. The port is taken before a model is loaded (a second server on it fails at once), and answers
503 until it is there. Each model lives by itself (`life`); where one is gone for good, the others drain and the server ends.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.app import Endpoint, build_app
from branchpoint.runtime.serving.gateway import Loaded, State
from branchpoint.runtime.serving.life import LAST_BYTES_SECONDS, Loading, ModelLife, Turns
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.traces import Traces

__all__ = ["PortTaken", "Server", "bind"]

logger = logging.getLogger("branchpoint.serving")

IDLE_SECONDS = 60
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
    # asyncio sends without delay only where a socket says TCP; else a kept connection's answers wait 40 ms for each other
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


class Server:
    """One run of the server; `tell` prints what operators should see. Made and run in one event loop."""

    def __init__(
        self, options: ServerOptions, loading: Sequence[Loading], tell: Callable[[str], None], more: Sequence[Endpoint] = ()
    ) -> None:
        self._options = options
        self._more = more
        self._loading = loading
        self._turns = Turns(tell)

    async def run(self, listener: socket.socket, traces: Traces | None = None) -> int:
        """Serve until a signal (0), or until an engine dies and has no restart left (1).

        Raises BranchpointError where a model can't be loaded.
        """
        models = Models(self._options, [each.names for each in self._loading], traces)
        config = uvicorn.Config(
            build_app(models, self._more),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=LAST_BYTES_SECONDS,
            timeout_keep_alive=IDLE_SECONDS,
            **_tls(self._options),
        )
        web = _Uvicorn(config)
        loop, turns = asyncio.get_running_loop(), self._turns
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        turns.tell("Loading the model…" if len(models) == 1 else f"Loading {len(models)} models…")
        serving = asyncio.create_task(web.serve(sockets=[listener]))
        serving.add_done_callback(lambda _: turns.gone.set())
        try:
            return await self._live(models, listener)
        finally:
            web.should_exit = True
            web.force_exit = turns.now.is_set()
            await serving
            models.shared.close()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        (self._turns.now if self._turns.stop.is_set() else self._turns.stop).set()

    async def _live(self, models: Models, listener: socket.socket) -> int:
        """The exit status, once all models have come to their end: the first of them ends the others, in order."""

        def ready(loaded: Loaded) -> None:
            self._announce(models, loaded, listener)

        lives = [
            asyncio.create_task(ModelLife(gateway, loading, self._turns, ready).run())
            for gateway, loading in zip(models, self._loading, strict=True)
        ]
        await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
        self._turns.stop.set()
        ends = await asyncio.gather(*lives, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return 0 if all(ends) else 1

    def _announce(self, models: Models, loaded: Loaded, listener: socket.socket) -> None:
        info, tell = loaded.info, self._turns.tell
        host, port = listener.getsockname()[:2]
        tokens = info.num_pages * info.page_size
        whole = f"{tokens / info.context_length:,.1f} sequences of the whole context of {info.context_length:,}"
        pool = f"({tokens:,} tokens of KV: {whole})"
        if loaded.longest < info.context_length:
            tell(f"Requests of more than {loaded.longest:,} tokens are refused: the KV pool holds less than the context.")
        scheme = "http" if self._options.ssl_certfile is None else "https"
        where = f"on {scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if len(models) == 1:
            tell(f"Ready: {loaded.names[0]} {where} {pool}")
            return
        tell(f"Loaded: {loaded.names[0]} {pool}")
        if all(gateway.state is State.READY for gateway in models):
            tell(f"Ready: {', '.join(gateway.name for gateway in models)} {where}")


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
