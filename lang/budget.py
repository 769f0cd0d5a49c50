"""What a run may still spend: tokens over all its forks, and time (LANGUAGE B1).

The executor holds it around each call, `request.py` counts what comes; whatever runs when it is spent is cancelled. Belongs to
the event loop, but for `over`.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

__all__ = ["Budget"]


class Budget:
    """The budget of one run. `max_total_tokens` and `deadline` (seconds from now) are None where there is no limit."""

    def __init__(self, max_total_tokens: int | None = None, deadline: float | None = None) -> None:
        self._limit = max_total_tokens
        self._deadline = deadline
        self._begin = time.monotonic()
        self._spent = 0
        self._late = False
        self._running: set[asyncio.Task[object]] = set()

    @property
    def spent(self) -> int:
        """Tokens that were computed so far."""
        return self._spent

    @property
    def left(self) -> int | None:
        """Tokens that may still be computed; None: any number."""
        return None if self._limit is None else max(self._limit - self._spent, 0)

    @property
    def seconds_left(self) -> float | None:
        """Time until the deadline; None: there is none."""
        return None if self._deadline is None else max(self._deadline - (time.monotonic() - self._begin), 0.0)

    def over(self) -> str | None:
        """Why nothing more may be computed, None where something may."""
        if self.left == 0:
            return f"The run's budget of {self._limit} tokens is spent."
        if self._late or self.seconds_left == 0:
            return f"The run's deadline of {self._deadline} seconds has passed."
        return None

    def hold(self) -> AbstractContextManager[None]:
        """Around a call, in its task, which is cancelled when the budget is spent. Raises CancelledError where it is already."""
        return contextlib.nullcontext() if self._limit is None and self._deadline is None else self._held()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        task = asyncio.current_task()
        assert task is not None, "calls run in tasks"
        if self.over() is not None:
            raise asyncio.CancelledError
        seconds = self.seconds_left
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, task) if seconds is not None else None
        self._running.add(task)
        try:
            yield
        finally:
            self._running.discard(task)
            if timer is not None:
                timer.cancel()

    def _expire(self, task: "asyncio.Task[object]") -> None:
        self._late = True
        task.cancel()

    def spend(self, tokens: int, *, ends: bool) -> None:
        """Count tokens that the current task's call computed. With the last of them everything that runs is cancelled.

        `ends`: this call ends by itself with them, so it isn't.
        """
        self._spent += tokens
        if self.left == 0:
            for task in self._running - ({asyncio.current_task()} if ends else set()):
                task.cancel()
