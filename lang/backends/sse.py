"""Server-sent events, cut out of the bytes of an answer. Used by the backends of servers that stream so."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

import httpx

__all__ = ["ServerEvent", "server_events", "until"]

_LONGEST_END = 0.5  # seconds that a server has to end its answer after its last event; mostly it has by then


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its name ("" where it has none) and its data."""

    name: str
    data: bytes


async def server_events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[ServerEvent, None]:
    """The events of a stream. Comments, ids and retry times are left out; a last event without its empty line counts."""
    name, data, rest = "", list[bytes](), b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line and data:
                yield ServerEvent(name, b"\n".join(data))
            if not line:
                name, data = "", []
            elif line.startswith(b"event:"):
                name = line[6:].strip().decode("utf-8", "replace")
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
    if rest.startswith(b"data:"):
        data.append(rest[5:].removeprefix(b" "))
    if data:
        yield ServerEvent(name, b"\n".join(data))


async def until(last: bytes, events: AsyncGenerator[ServerEvent, None]) -> AsyncGenerator[ServerEvent, None]:
    """The events before the one whose data is `last`, all where there is none.

    The answer is read to its end, so that its connection can be used again; a server that doesn't end it isn't waited for.
    """
    async with contextlib.aclosing(events):
        async for event in events:
            if event.data == last:
                break
            yield event
        with contextlib.suppress(TimeoutError, httpx.HTTPError):  # what comes is whole without it
            async with asyncio.timeout(_LONGEST_END):
                async for _ in events:
                    pass
