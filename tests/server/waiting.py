"""Waiting for something to become true, without a fixed sleep."""

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)
