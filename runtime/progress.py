"""What loading a model is at, as lines of the log `branchpoint.loading`; the engine process sends its own to its parent.

Told by `build` and `loading`; whoever reads logs at the level INFO sees them, the server's operators too.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["PROGRESS", "told_to"]

PROGRESS: Final = logging.getLogger("branchpoint.loading")


@contextmanager
def told_to(hear: Callable[[str], None]) -> Iterator[None]:
    """Have `hear` called with each line in here, on the thread that tells it."""
    handler, before = _Handler(hear), PROGRESS.level
    PROGRESS.addHandler(handler)
    PROGRESS.setLevel(logging.INFO)
    try:
        yield
    finally:
        PROGRESS.removeHandler(handler)
        PROGRESS.setLevel(before)


class _Handler(logging.Handler):
    def __init__(self, hear: Callable[[str], None]) -> None:
        super().__init__()
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear(record.getMessage())
