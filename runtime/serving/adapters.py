"""The LoRA adapters that one model is asked for by name, and the folders that more of them may come from.

Part of a gateway. What is loaded the engine itself decides; this is what the server knows of it before it asks.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from starlette.types import Scope

from branchpoint.errors import BranchpointError
from branchpoint.runtime.client import EngineClient
from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.serving.errors import ApiError, bad_request, clip
from branchpoint.runtime.serving.wire import Json

__all__ = ["ADAPTER", "ServedAdapters", "adapter_of", "folder_within"]

ADAPTER = "branchpoint.adapter"
"""Where the ASGI scope holds the name of the adapter that a request is computed with; empty for the model's own weights."""

logger = logging.getLogger("branchpoint.serving")


def adapter_of(scope: Scope) -> str:
    """The adapter that a request is computed with."""
    return str(scope.get(ADAPTER, ""))


class ServedAdapters:
    """Names of adapters and the folders that they came from; more may come from `roots`. Belongs to one event loop."""

    def __init__(self, roots: tuple[str, ...] = ()) -> None:
        self._roots = roots
        self._engine: EngineClient | None = None
        self._served: dict[str, str] | None = None

    def __iter__(self) -> Iterator[str]:
        """Their names, the oldest first."""
        return iter(self._served or ())

    def __contains__(self, name: object) -> bool:
        return name in (self._served or ())

    def attach(self, engine: EngineClient, begun: Mapping[str, str]) -> None:
        """`engine` serves from now on; the first one, what it has `begun` with."""
        self._engine = engine
        if self._served is None:
            self._served = dict(begun)

    async def restore(self, engine: EngineClient, begun: Mapping[str, str]) -> None:
        """Have a new engine, which has `begun` with its own adapters, serve what the last one did; what can't be read is gone.

        Raises EngineDead.
        """
        if self._served is None:
            return
        for name, folder in list(self._served.items()):
            try:
                if begun.get(name) != folder:
                    await asyncio.wrap_future(engine.load_adapter(name, folder, replace=True, within=self._roots))
            except EngineDead:  # which says nothing of the adapter: the next engine is asked again
                raise
            except BranchpointError as error:
                logger.warning("The adapter %s could not be loaded again: %s", ascii(name), error)
                del self._served[name]
        for name in begun.keys() - self._served.keys():
            await asyncio.wrap_future(engine.unload_adapter(name))

    def named(self, model: str, bases: Sequence[str]) -> str:
        """The adapter that is meant by a model's name, by its own or as BASE:NAME; empty where none is."""
        if model in self:
            return model
        meant = (model.removeprefix(f"{base}:") for base in bases if model.startswith(f"{base}:"))
        return next((name for name in meant if name in self), "")

    def asked(self, body: Json, bases: Sequence[str]) -> str:
        """The adapter that a request's body asks for, as `model` or as `lora_path`; empty where it asks for none.

        Raises ApiError 404 for one that isn't there, InvalidRequest where the body names two.
        """
        model, own = body.get("model"), body.get("lora_path")
        named = self.named(model, bases) if isinstance(model, str) and model not in bases else ""
        if not isinstance(own, str) or not own:
            return named
        if own not in self:
            raise ApiError(
                404, f"The adapter {clip(own, 80)!r} does not exist. Served: {', '.join(self) or 'none'}.", param="lora_path"
            )
        if named not in ("", own):
            raise bad_request("model and lora_path name two adapters; leave one out.", "lora_path")
        return own

    async def load(self, name: str, folder: Path, *, replace: bool) -> None:
        """Load an adapter. Raises what the engine refuses it for."""
        assert self._engine is not None and self._served is not None, "adapters are loaded once there is a model"
        await asyncio.wrap_future(self._engine.load_adapter(name, str(folder), replace=replace, within=self._roots))
        self._served[name] = str(folder)

    async def unload(self, name: str) -> None:
        """Take an adapter's name away; its running requests go on. Raises UnknownModel."""
        assert self._engine is not None and self._served is not None, "adapters are unloaded once there is a model"
        await asyncio.wrap_future(self._engine.unload_adapter(name))
        self._served.pop(name, None)


def folder_within(given: str, roots: Sequence[str]) -> Path:
    """The folder that is meant, which lies in one of `roots`, wherever links lead; a relative one is looked for in each of them.

    Where its files lie is looked at as they are read. Raises ApiError 403 for any other place, 404 where there is none.
    """
    allowed = [Path(root).resolve() for root in roots]
    try:
        folders = [(root / given).resolve() for root in allowed]
        folders = [folder for folder, root in zip(folders, allowed, strict=True) if folder.is_relative_to(root)]
        found = next((folder for folder in folders if folder.is_dir()), None)
    except (OSError, RuntimeError, ValueError) as error:  # too long, links that go round, a character that no path has
        raise bad_request(f"lora_path can't be a folder: {clip(given, 80)!r}.", "lora_path") from error
    if not folders:
        raise ApiError(
            403, "lora_path must lie in one of the folders that this server loads from (--lora-dirs).", param="lora_path"
        )
    if found is None:
        raise ApiError(404, f"There is no folder {clip(given, 80)!r} to load from.", param="lora_path")
    return found
