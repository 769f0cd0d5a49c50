"""The answer to a program's request: its result whole, or events by variable, for as long as the client reads it.

Made by `serve`; leaving it, however that is, ends the run.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from branchpoint.errors import BranchpointError
from branchpoint.lang.errors import Incomplete, OutOfBudget, ProgramError
from branchpoint.lang.play import Called
from branchpoint.lang.recording import record
from branchpoint.lang.run import Run
from branchpoint.lang.stream import Replay
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.errors import ApiError, api_error, error_body
from branchpoint.runtime.serving.framing import EVENTS
from branchpoint.runtime.serving.logs import fields
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.reader import Stalled, put, while_read
from branchpoint.runtime.serving.wire import Json

__all__ = ["ProgramAnswer"]

logger = logging.getLogger("branchpoint.serving")


class ProgramAnswer(Response):
    """What `run` comes to, under the id `own`. With `called`, the calls that it makes, as events by variable while it runs.

    `recording`: with what a run can be made of again. `timeout` is the request's time limit in seconds where the run has no
    shorter one of its own.
    """

    def __init__(
        self,
        run: Run[object],
        own: str,
        model: str,
        settings: ServerOptions,
        called: Replay[Called] | None,
        *,
        recording: bool,
        timeout: float | None,
    ) -> None:
        super().__init__()
        self._run = run
        self._id = own
        self._model = model
        self._settings = settings
        self._called = called
        self._recording = recording
        self._timeout = timeout
        del self.headers["content-length"]  # what other headers it is given go out with the first byte

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, and end the run where its client goes or stops reading. Raises ApiError before the first byte."""
        told = fields({"request_id": self._id})
        try:
            if not await while_read(self._serve(send), receive):
                logger.info("%s: the client is gone, the program is ended", self._id, extra=told)
        except Stalled:  # the connection is closed for want of an end
            logger.warning("%s: the client reads nothing, cut off", self._id, extra=told)
        finally:
            self._run.cancel()

    async def _serve(self, send: Send) -> None:
        if self._called is None:
            await self._ended()
            body = msgspec.json.encode(self._result())
            await self._start(send, "application/json")
            await self._put(send, body, more=False)
            return
        await self._start(send, EVENTS.media_type)
        events = asyncio.Queue[bytes | None]()
        following = asyncio.create_task(self._follow(self._called, events))
        try:
            async for event in self._heard(events):
                await self._put(send, event)
            await following
            last = _event("done", self._result())
        except ApiError as error:
            last = _event("error", error_body(error))
        except Stalled:
            raise
        except Exception as error:  # request boundary: the status is sent, so the stream itself must tell
            logger.exception("%s: failed while streaming", self._id, extra=fields({"request_id": self._id}))
            last = _event("error", error_body(ApiError(500, f"The server failed on this request: {type(error).__name__}.")))
        finally:
            following.cancel()
        await self._put(send, last, more=False)

    async def _ended(self) -> None:
        with contextlib.suppress(Exception):  # `_result` tells it
            await asyncio.wrap_future(self._run.outcome)

    async def _follow(self, called: Replay[Called], events: "asyncio.Queue[bytes | None]") -> None:
        """Put the events of all calls, as they come, and None behind the last."""
        try:
            async with asyncio.TaskGroup() as calls:
                async for one in called:
                    calls.create_task(_follow_one(one, events))
            await self._ended()
        finally:
            events.put_nowait(None)

    async def _heard(self, events: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
        """The events; a comment now and then while there are none, where the server is told to."""
        while True:
            try:
                async with asyncio.timeout(self._settings.keep_alive_seconds):
                    event = await events.get()
            except TimeoutError:
                yield EVENTS.idle
                continue
            if event is None:
                return
            yield event

    def _result(self) -> Json:
        run = self._run
        try:
            value = run.value
        except BranchpointError as error:
            raise self._problem(error) from error
        variables, incomplete = Json(), Json()
        for name in run.variables():
            try:
                variables[name] = run[name]
            except Incomplete as error:
                incomplete[name] = error.partial
            except ProgramError as error:
                raise self._problem(error) from error
        body: Json = {"id": self._id, "object": "program", "model": self._model, "program": run.program, "seed": run.seed}
        body |= {"value": value, "variables": variables, "incomplete": incomplete, "text": run.text()}
        body |= {"messages": run.messages(), "usage": run.report().total}
        if self._recording:
            body["recording"] = record(run.context)
        return body

    def _problem(self, error: BranchpointError) -> ApiError:
        """The answer that a failed run becomes: the status of what a call failed with, the message of the program."""
        if isinstance(error, OutOfBudget):
            late = self._run.context.budget.seconds_left == 0
            if late and self._timeout is not None:
                return ApiError(504, f"The request took longer than the {self._timeout:g} s that it may.")
            return ApiError(400, str(error), param="deadline" if late else "max_total_tokens")
        cause = error.__cause__
        status = api_error(cause).status if isinstance(cause, BranchpointError) else api_error(error).status
        return ApiError(status, str(error), param=cause.param if isinstance(cause, InvalidRequest) else None)

    async def _start(self, send: Send, media_type: str) -> None:
        headers = [(b"content-type", media_type.encode()), (b"x-request-id", self._id.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers + self.raw_headers})

    async def _put(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await put(send, body, self._settings.stall_seconds, more=more)


async def _follow_one(one: Called, events: "asyncio.Queue[bytes | None]") -> None:
    """`delta` for each piece of a variable's text, `value` when it is whole."""
    told: Json = {"name": one.entry.name, "node": one.node, "branch": one.branch}
    with contextlib.suppress(ProgramError):  # the run's end tells it
        async for piece in one.entry.pieces:
            events.put_nowait(_event("delta", told | {"text": piece}))
        await one.entry.done.reached()
        with contextlib.suppress(Incomplete):
            events.put_nowait(_event("value", told | {"value": one.entry.read()}))


def _event(name: str, data: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
