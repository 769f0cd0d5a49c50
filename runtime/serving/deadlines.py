"""How long a request may take: until its first token, and in all. Timers beside an `Exchange`, set by `answer`."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from branchpoint.runtime.serving.errors import ApiError, bad_request
from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.options import ServerOptions

__all__ = ["TIMEOUT_HEADER", "Deadlines", "deadlines_of"]

TIMEOUT_HEADER = "X-Request-Timeout"


class Deadlines:
    """Seconds that a request may wait for its first token (`first`), and may take in all (`whole`); None: any."""

    def __init__(self, first: float | None, whole: float | None) -> None:
        self.first = first
        self.whole = whole

    @contextmanager
    def hold(self, exchange: Exchange) -> Iterator[None]:
        """End the request with an error when its time is up."""
        loop = asyncio.get_running_loop()
        timers = list[asyncio.TimerHandle]()
        if self.first is not None:
            late = ApiError(503, f"The request waited {self.first:g} s for a first token. Try again later.", retry_after=1)
            timers.append(loop.call_later(self.first, lambda: None if exchange.touched else exchange.fail(late)))
        if self.whole is not None:
            over = ApiError(504, f"The request took longer than the {self.whole:g} s that it may.")
            timers.append(loop.call_later(self.whole, exchange.fail, over))
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()


def deadlines_of(scope: Scope, options: ServerOptions) -> Deadlines:
    """The server's own limits, and the shorter one that the request's header asks for. Raises InvalidRequest."""
    name = TIMEOUT_HEADER.lower().encode()
    given = next((value for key, value in scope["headers"] if key == name), None)
    asked = math.inf if given is None else _seconds(given)
    whole = min(asked, options.max_request_seconds or math.inf)
    return Deadlines(options.queue_seconds, None if math.isinf(whole) else whole)


def _seconds(given: bytes) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise bad_request(f"The header {TIMEOUT_HEADER} must be a number of seconds above 0.", TIMEOUT_HEADER)
    return seconds
