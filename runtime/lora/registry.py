"""The adapters of one engine by name. Names come and go while it runs; what a sequence has begun with stays with it.

Asked by the engine's door for each call that names an adapter; changed from any thread, since reading weights takes a while.
"""

import threading
from collections.abc import Iterable
from typing import Protocol

from branchpoint.runtime.errors import InvalidRequest, UnknownModel
from branchpoint.runtime.lora.adapter import Adapter, check_name
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.stats import AdapterUse

__all__ = ["Adapters", "ReadAdapter"]


class ReadAdapter(Protocol):
    """Reads the adapter of a name out of a folder."""

    def __call__(self, name: str, folder: str, *, within: tuple[str, ...]) -> Adapter:
        """See `Adapters.load`. Raises ModelError."""


class Adapters:
    """Those that `read` has read, of which `most` may run at once; with None the engine takes no adapters."""

    def __init__(self, read: ReadAdapter | None = None, most: int = 1) -> None:
        self._read = read
        self._most = most
        self._lock = threading.Lock()
        self._adapters: dict[str, Adapter] = {}

    def find(self, name: str) -> Adapter:
        """The adapter that has this name now. Raises UnknownModel."""
        adapter = self._adapters.get(name)
        if adapter is None:
            raise UnknownModel(f"No adapter {name!r:.80} is loaded.", param="model")
        return adapter

    def load(self, name: str, folder: str, *, replace: bool = False, within: tuple[str, ...] = ()) -> None:
        """Read an adapter; with `replace` calls from now on get this one in place of another of its name. Where `within` names
        folders, nothing is read from outside of them, wherever links lead.

        Raises InvalidRequest where the name can't be given, ModelError for a folder that holds no adapter for this model.
        """
        if self._read is None:
            raise InvalidRequest("This engine takes no adapters; start it with enable_lora.", param="enable_lora")
        check_name(name)
        self._check_free(name, replace=replace)
        adapter = self._read(name, folder, within=within)
        with self._lock:
            self._check_free(name, replace=replace)
            self._adapters[name] = adapter

    def unload(self, name: str) -> None:
        """Take the name away; calls that have begun with its adapter go on. Raises UnknownModel."""
        with self._lock:
            self.find(name)
            del self._adapters[name]

    def use(self, running: Iterable[Sequence], waiting: Iterable[Sequence]) -> AdapterUse | None:
        """Which of them sequences have; None where the engine takes none."""
        if self._read is None:
            return None
        with_one = ({each.adapter.name for each in sequences if each.adapter is not None} for sequences in (running, waiting))
        return AdapterUse(self._most, *(tuple(sorted(names)) for names in with_one))

    def _check_free(self, name: str, *, replace: bool) -> None:
        if name in self._adapters and not replace:
            raise InvalidRequest(f"An adapter {name!r:.80} is loaded already; unload it first.", param="lora_name")
