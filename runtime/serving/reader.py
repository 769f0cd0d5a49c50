"""Whoever reads an answer: how long it may take nothing of what is sent, and when it is gone.

Used by `answer`, and by answers from above this room.
"""

import asyncio
from collections.abc import Coroutine

from starlette.types import Receive, Send

__all__ = ["Stalled", "put", "while_read"]


class Stalled(Exception):
    """The client has stopped reading: nothing more can be said to it."""


async def put(send: Send, body: bytes, seconds: float, *, more: bool = True) -> None:
    """Send a piece of a body, and that there are `more`. Raises Stalled where the client takes nothing for so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError as error:
        raise Stalled from error


async def while_read(work: Coroutine[object, object, None], receive: Receive) -> bool:
    """Do `work` until the client closes its connection, which cancels it; whether it came to its end. Raises what it raises."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_closed(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
