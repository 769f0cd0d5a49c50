"""The real application on a free port, in a thread, for tests of backends that speak to servers."""

import threading
from typing import Any

import msgspec
import uvicorn

from branchpoint.lang.serve import programs_endpoint
from branchpoint.runtime.serving.app import build_app
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.options import ServerOptions
from tests.runtime.serving_fake import FakeEngine
from tests.runtime.serving_site import tokenizer

__all__ = ["Site"]


class Site:
    """The application on a free port, in a thread, around `loaded` or fake engines, one of each of `names`."""

    def __init__(
        self, loaded: Loaded | None = None, context: int = 128, names: tuple[str, ...] = ("fake",), **options: Any
    ) -> None:
        self.engines = [FakeEngine() for _ in names]
        for engine in self.engines:
            engine.info = msgspec.structs.replace(engine.info, context_length=context)
        self.engine = self.engines[0]
        settings = ServerOptions(**({"api_keys": ("secret",)} | options))
        self._models = Models(settings, [(name,) for name in names])
        for gateway, engine, name in zip(self._models, self.engines, names, strict=True):
            gateway.attach(loaded or Loaded(engine, tokenizer(), (name,), 8))
        app = build_app(self._models, [programs_endpoint()])
        config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
            assert self._thread.is_alive()
        host, port = self._server.servers[0].sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        self.gateway = self._models.first

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._models.shared.close()
