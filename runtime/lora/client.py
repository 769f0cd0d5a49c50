"""An engine as it is with one of its adapters: a client whose calls all name it.

Made by the language's engine; the server names adapters in the calls themselves.
"""

from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from branchpoint.runtime.client import EngineClient, OnEvent
from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.messages import Call, ScoreCall
from branchpoint.runtime.stats import CacheDump, EngineStats

__all__ = ["AdapterClient"]


class AdapterClient:
    """`client` with the adapter of a name, which may come later; closing it leaves the engine as it is. See `EngineClient`."""

    def __init__(self, client: EngineClient, adapter: str) -> None:
        self._client = client
        self._adapter = adapter
        self.info = client.info

    def submit(self, call: Call | ScoreCall, on_event: OnEvent) -> None:
        """See `EngineClient`."""
        self._client.submit(msgspec.structs.replace(call, adapter=self._adapter), on_event)

    def abort(self, call_id: str) -> None:
        """See `EngineClient`."""
        self._client.abort(call_id)

    def end_program(self, program: str, namespace: str = "") -> None:
        """See `EngineClient`."""
        self._client.end_program(program, namespace)

    def stats(self) -> "Future[EngineStats]":
        """See `EngineClient`."""
        return self._client.stats()

    def flush_cache(self) -> "Future[int]":
        """See `EngineClient`."""
        return self._client.flush_cache()

    def dump_cache(self) -> "Future[CacheDump]":
        """See `EngineClient`."""
        return self._client.dump_cache()

    def load_adapter(self, name: str, folder: str, *, replace: bool = False, within: tuple[str, ...] = ()) -> "Future[None]":
        """See `EngineClient`."""
        return self._client.load_adapter(name, folder, replace=replace, within=within)

    def unload_adapter(self, name: str) -> "Future[None]":
        """See `EngineClient`."""
        return self._client.unload_adapter(name)

    def close(self) -> None:
        """See `EngineClient`."""

    @property
    def dead(self) -> EngineDead | None:
        """See `EngineClient`."""
        return self._client.dead

    def on_death(self, callback: Callable[[EngineDead], None]) -> None:
        """See `EngineClient`."""
        self._client.on_death(callback)
