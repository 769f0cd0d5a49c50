"""The answer to one request, from the first engine event to the last byte, and what happens when its client goes.

A handler returns an `Answer`; it owns the exchange, so that there is one place that ends calls. A `View` says how events
look on the wire. Nothing is sent before the first event: what can be refused is refused with a status, on streams too.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import InvalidRequest, RuntimeFailure
from branchpoint.runtime.messages import Call, Event, Failed, ScoreCall
from branchpoint.runtime.serving.errors import ApiError, api_error, error_body
from branchpoint.runtime.serving.exchange import NO_NAMES, Exchange
from branchpoint.runtime.serving.gateway import Gateway

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
    def lines(self) -> bool:
        """Whether a stream is JSON lines; server-sent events otherwise."""

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
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or abort as soon as the client is gone."""
        serving = asyncio.create_task(self._serve(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({serving, gone}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            else:
                logger.info("%s: the client is gone, aborted", self._id)
        finally:
            serving.cancel()
            gone.cancel()
            await asyncio.gather(serving, gone, return_exceptions=True)

    async def _serve(self, send: Send) -> None:
        began = time.monotonic()
        with self._gateway.open(self._id, self._calls, self._params) as exchange:
            try:
                await self._answer(send, exchange)
            finally:
                self._log(exchange, time.monotonic() - began)

    def _log(self, exchange: Exchange, seconds: float) -> None:
        """One line for each request that the engine got, without its text."""
        usages = exchange.usages
        told = {
            "calls": f"{len(usages)}/{len(self._calls)}",
            "prompt": sum(usage.prompt_tokens for usage in usages),
            "cached": sum(usage.cached_tokens for usage in usages),
            "completion": sum(usage.completion_tokens for usage in usages),
            "finish": ",".join(sorted(set(exchange.reasons))) or "none",
            "queue": f"{max((usage.queue_seconds for usage in usages), default=0):.3f}s",
            "total": f"{seconds:.3f}s",
        }
        logger.info("%s: %s", self._id, " ".join(f"{name}={value}" for name, value in told.items()))

    async def _answer(self, send: Send, exchange: Exchange) -> None:
        batch = await exchange.batch()
        if self._view.stream:
            await self._stream(send, exchange, batch)
            return
        while batch:
            self._view.chunks(batch)
            batch = await exchange.batch()
        await self._start(send, "application/json")
        await send({"type": "http.response.body", "body": msgspec.json.encode(self._view.whole())})

    async def _stream(self, send: Send, exchange: Exchange, batch: EventBatch) -> None:
        await self._start(send, "application/jsonl" if self._view.lines else "text/event-stream; charset=utf-8")
        try:
            while batch:
                await self._write(send, self._view.chunks(batch))
                batch = await exchange.batch()
            await self._write(send, self._view.tail())
        except BranchpointError as error:
            await self._write(send, [self._failed(error)])
        except Exception as error:  # request boundary: the status is sent, so the stream itself must tell
            logger.exception("%s: failed while streaming", self._id)
            await self._write(send, [self._failed(RuntimeFailure(f"The server failed on this request: {type(error).__name__}."))])
        await send({"type": "http.response.body", "body": b"" if self._view.lines else b"data: [DONE]\n\n"})

    async def _start(self, send: Send, media_type: str) -> None:
        headers = [(b"content-type", media_type.encode()), (b"x-request-id", self._id.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _write(self, send: Send, chunks: list[object]) -> None:
        prefix, suffix = (b"", b"\n") if self._view.lines else (b"data: ", b"\n\n")
        if chunks:
            body = b"".join(prefix + msgspec.json.encode(chunk) + suffix for chunk in chunks)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    def _failed(self, error: BranchpointError) -> object:
        """The last thing that a failed stream says."""
        if not self._view.lines:
            return error_body(api_error(error))
        kind = error.kind if isinstance(error, InvalidRequest | RuntimeFailure) else "internal"
        param = error.param if isinstance(error, InvalidRequest | RuntimeFailure | ApiError) else None
        return Failed(self._calls[0].id, kind, str(error), param)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        continue
