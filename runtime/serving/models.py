"""The models of one server, each behind a gateway of its own; a request says by name which it means.

Made by `server`; handlers ask it for the gateway of their request.
"""

from collections.abc import Iterator, Sequence

from branchpoint.runtime.serving.errors import ApiError, clip
from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.gateway import Gateway, State
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.record import RequestRecord
from branchpoint.runtime.serving.shared import Shared
from branchpoint.runtime.serving.traces import Traces
from branchpoint.runtime.serving.wire import Json

__all__ = ["Models"]


class Models:
    """At least one; the first is meant where a request names none. `names` are theirs, as far as known before they are loaded."""

    def __init__(
        self, settings: ServerOptions | None = None, names: Sequence[tuple[str, ...]] = ((),), traces: Traces | None = None
    ) -> None:
        self.shared = Shared(settings or ServerOptions(), traces)
        self._gateways = tuple(Gateway(self.shared, each) for each in names)

    def __iter__(self) -> Iterator[Gateway]:
        return iter(self._gateways)

    def __len__(self) -> int:
        return len(self._gateways)

    @property
    def first(self) -> Gateway:
        """The one that is meant where none is named."""
        return self._gateways[0]

    @property
    def ready(self) -> list[Gateway]:
        """Those that admit requests; the first where none does, which says why when it is asked."""
        return [gateway for gateway in self if gateway.state is State.READY] or [self.first]

    def find(self, name: str | None) -> Gateway:
        """The model of this name, or of the adapter of this name. Raises ApiError 404."""
        if name is None:
            return self.first
        for gateway in self:
            if name in gateway.names:
                return gateway
        for gateway in self:
            if gateway.adapters.named(name, gateway.names):
                return gateway
        if not self.first.names:  # it has none before it is loaded, which it says when it is asked
            return self.first
        served = ", ".join(name for gateway in self for name in (*gateway.names, *gateway.adapters))
        raise ApiError(404, f"The model {clip(name, 80)!r} does not exist. Served: {served}.", param="model")

    def of(self, body: Json) -> Gateway:
        """The one that a request names as `model` in its body. Raises ApiError 404."""
        named = body.get("model")
        return self.find(named if isinstance(named, str) else None)

    def chosen(self, name: str | None) -> tuple[Gateway, ...]:
        """The one of this name, or all. Raises ApiError 404."""
        return self._gateways if name is None else (self.find(name),)

    @property
    def num_open(self) -> int:
        """Requests in the engines."""
        return sum(gateway.num_open for gateway in self)

    def seen_by(self, caller: Caller) -> list[tuple[RequestRecord, Exchange]]:
        """The open requests that `caller` may see."""
        return [each for gateway in self for each in gateway.requests.seen_by(caller)]

    def abort(self, caller: Caller, request_id: str | None) -> int:
        """See `InFlight.abort`."""
        return sum(gateway.requests.abort(caller, request_id) for gateway in self)

    async def metrics(self) -> bytes:
        """All metrics as text, up to date. Raises ApiError 503 before there is a model."""
        missing: list[ApiError] = []
        for gateway in self:
            try:
                await gateway.update_metrics()
            except ApiError as error:
                missing.append(error)
        if len(missing) == len(self):
            raise missing[0]
        return self.shared.families.render() + self.shared.http.render()
