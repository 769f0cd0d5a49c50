"""How the HTTP side is set up, beside `EngineConfig`, which says how the engine is."""

from typing import Annotated

import msgspec
from msgspec import Meta

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["ServerOptions"]


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the API process. Raises InvalidRequest naming the option.

    Without `api_keys` every request is served. `model_names` are what clients may call the model (its own name where empty).
    `shutdown_timeout` is how many seconds a SIGTERM lets running requests go on.
    """

    host: Annotated[str, Meta(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port to listen on; 0 takes a free one.")] = 8000
    api_keys: Annotated[tuple[str, ...], Meta(description="A key that requests must carry; may be given several times.")] = ()
    model_names: Annotated[tuple[str, ...], Meta(description="The model's name to clients; may be given several times.")] = ()
    max_body_bytes: Annotated[int, Meta(description="Longest request body.")] = 64 * 2**20
    shutdown_timeout: Annotated[float, Meta(description="Seconds that running requests get after SIGTERM.")] = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InvalidRequest(f"port must be in [0, 65535] (0 takes a free one), got {self.port}.", param="port")
        if not self.host:
            raise InvalidRequest("host must not be empty; 0.0.0.0 listens on every address.", param="host")
        if not self.shutdown_timeout >= 0:  # also what is no number
            raise InvalidRequest(f"shutdown_timeout must be at least 0, got {self.shutdown_timeout}.", param="shutdown_timeout")
        if self.max_body_bytes < 1:
            raise InvalidRequest(f"max_body_bytes must be at least 1, got {self.max_body_bytes}.", param="max_body_bytes")
        if not all(key.strip() for key in self.api_keys):
            raise InvalidRequest("An API key must not be empty.", param="api_keys")
        if not all(self.model_names):
            raise InvalidRequest("A served name must not be empty.", param="model_names")
