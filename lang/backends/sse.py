"""Server-sent events, cut out of the bytes of an answer. Used by the backends of servers that stream so."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

__all__ = ["ServerEvent", "server_events"]


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
