"""Whether the engine still moves: any event is a beat, and so is an answer to a question asked between two steps.

Looked at by the health routes, which ask the question; nothing runs where nobody looks.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future

from branchpoint.runtime.stats import EngineStats

__all__ = ["Pulse"]


class Pulse:
    """Stuck is an engine that has answered nothing for `seconds` though it was asked. `clock` gives seconds."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last = clock()
        self._asked: Future[EngineStats] | None = None
        self._since = 0.0

    def beat(self) -> None:
        """The engine has shown that it works. From any thread."""
        self._last = self._clock()

    def stuck(self, ask: Callable[[], "Future[EngineStats]"]) -> bool:
        """Whether the engine has been silent for too long; asks it again where it has answered. Never waits."""
        now = self._clock()
        if self._asked is not None and not self._asked.done():
            return now - max(self._since, self._last) > self._seconds
        self._asked, self._since = ask(), now
        return False
