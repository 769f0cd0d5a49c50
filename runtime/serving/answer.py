"""The answer to one request, from the first engine event to the last byte, and what happens when its client goes.

A handler returns an `Answer`; it owns the exchange, so that there is one place that ends calls. A `View` says how events
look on the wire. Nothing is sent before the first event: what can be refused is refused with a status, on streams too.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import RuntimeFailure
from branchpoint.runtime.messages import Call, Event, ScoreCall
from branchpoint.runtime.serving.adapters import adapter_of
from branchpoint.runtime.serving.deadlines import deadlines_of
from branchpoint.runtime.serving.exchange import NO_NAMES, Exchange
from branchpoint.runtime.serving.framing import Framing
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.inflight import ticket_of
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.logs import fields
from branchpoint.runtime.serving.reader import Stalled, put, while_read
from branchpoint.runtime.serving.record import RequestRecord, log_refusal, record_of

__all__ = ["Answer", "EventBatch", "View"]

logger = logging.getLogger("branchpoint.serving")

EventBatch = list[tuple[int, Event]]
"""Events, each with the place of its call in the request."""


class View(Protocol):
    """How one request's events look on the wire."""

    @property
    def stream(self) -> bool:
        """Whether the answer is sent piece by piece."""

    @property
    def framing(self) -> Framing:
        """How a stream's pieces stand on the wire."""

    def chunks(self, batch: EventBatch) -> list[object]:
        """Take the events that have come since the last time; what is to be sent for them, where the answer is a stream."""

    def tail(self) -> list[object]:
        """What a stream sends after the last event."""

    def whole(self) -> object:
        """The body, where the answer is not a stream."""


class Answer(Response):
    """Submits `calls` when it is called, and ends them however it is left. `params` as in Exchange."""

    def __init__(
        self,
        gateway: Gateway,
        request_id: str,
        calls: tuple[Call | ScoreCall, ...],
        view: View,
        params: Mapping[str | None, str] = NO_NAMES,
    ) -> None:
        super().__init__()
        self._params = params
        self._gateway = gateway
        self._id = request_id
        self._calls = calls
        self._view = view
        del self.headers["content-length"]  # what other headers it is given go out with the first byte

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or abort as soon as the client is gone."""
        if not await while_read(self._serve(scope, send), receive):
            logger.info("%s: the client is gone, aborted", self._id, extra=fields({"request_id": self._id}))

    async def _serve(self, scope: Scope, send: Send) -> None:
        ticket = ticket_of(scope)
        try:
            if ticket is not None:
                ticket.check()
            deadlines = deadlines_of(scope, self._gateway.settings)
            record = record_of(scope, self._id, self._calls, self._gateway.name, stream=self._view.stream)
            if self._gateway.settings.log_prompts:
                record.texts = {"prompts": self._gateway.texts(self._calls)}
            exchange = self._gateway.open(record, self._params, caller_of(scope), adapter_of(scope))
        except BranchpointError as error:
            self._gateway.refused(error)
            log_refusal(scope, error, self._id)
            raise
        finally:
            if ticket is not None:
                self._gateway.requests.leave(ticket)
        with exchange, deadlines.hold(exchange):
            try:
                await self._answer(send, exchange, record)
            except Stalled:  # the connection is closed for want of an end
                logger.warning("%s: the client reads nothing, cut off", self._id, extra=fields({"request_id": self._id}))
            finally:
                self._tell(record, exchange)

    def _tell(self, record: RequestRecord, exchange: Exchange) -> None:
        """One line for each request that the engine got, and one span."""
        record.end()
        logger.info("%s: %s", self._id, record.line(exchange), extra=fields(record.fields(exchange) | record.texts))
        self._gateway.shared.traces.tell(record, exchange)

    async def _answer(self, send: Send, exchange: Exchange, record: RequestRecord) -> None:
        batch = await exchange.batch()
        record.mark_first()
        if self._view.stream:
            await self._stream(send, exchange, batch)
            return
        while batch:
            self._view.chunks(batch)
            batch = await exchange.batch()
        await self._start(send, "application/json")
        await self._put(send, msgspec.json.encode(self._view.whole()), more=False)

    async def _stream(self, send: Send, exchange: Exchange, batch: EventBatch) -> None:
        framing = self._view.framing
        await self._start(send, framing.media_type)
        try:
            while batch:
                await self._write(send, self._view.chunks(batch))
                batch = await self._next(send, exchange)
            await self._write(send, self._view.tail())
        except BranchpointError as error:
            await self._write(send, [framing.failure(error, self._calls[0].id)])
        except Stalled:
            raise
        except Exception as error:  # request boundary: the status is sent, so the stream itself must tell
            logger.exception("%s: failed while streaming", self._id, extra=fields({"request_id": self._id}))
            failure = RuntimeFailure(f"The server failed on this request: {type(error).__name__}.")
            await self._write(send, [framing.failure(failure, self._calls[0].id)])
        await self._put(send, framing.end, more=False)

    async def _next(self, send: Send, exchange: Exchange) -> EventBatch:
        """The next events; a comment now and then while there are none, where the server is told to."""
        silence = self._gateway.settings.keep_alive_seconds
        while True:
            try:
                async with asyncio.timeout(silence):
                    return await exchange.batch()
            except TimeoutError:
                await self._put(send, self._view.framing.idle)

    async def _start(self, send: Send, media_type: str) -> None:
        headers = [(b"content-type", media_type.encode()), (b"x-request-id", self._id.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers + self.raw_headers})

    async def _write(self, send: Send, chunks: list[object]) -> None:
        if chunks:
            await self._put(send, b"".join(map(self._view.framing.piece, chunks)))

    async def _put(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Send. Raises Stalled where the client takes nothing for too long."""
        await put(send, body, self._gateway.settings.stall_seconds, more=more)
