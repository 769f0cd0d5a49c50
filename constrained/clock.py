"""Bounds what steering may take of a thread: see `completion.py` and `engines/steered.py`."""

import time

__all__ = ["Clock"]


class Clock:
    """Counts seconds of this thread's CPU time down."""

    def __init__(self, seconds: float) -> None:
        self._until = time.thread_time() + seconds

    def left(self) -> float:
        """The seconds that are left; 0 and less where none are."""
        return self._until - time.thread_time()
