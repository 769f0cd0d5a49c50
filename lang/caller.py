"""Which line of a program called: what errors, reports and graphs name."""

import os
import sys
import traceback
from pathlib import Path
from types import FrameType

from branchpoint.lang.errors import Origin

__all__ = ["caller", "failing_line"]

_LIBRARY = str(Path(os.__file__).parent / "_")[:-1]
_INSTALLED = str(Path(_LIBRARY) / "site-packages")


def _is_own(frame: FrameType) -> bool:
    """Whether a frame is neither of this package nor of the standard library."""
    if frame.f_globals.get("__name__", "").startswith("branchpoint."):
        return False
    file = frame.f_code.co_filename
    return not file.startswith(_LIBRARY) or file.startswith(_INSTALLED)


def caller() -> Origin:
    """The line of the program that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_own(frame):
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)


def failing_line(error: BaseException) -> Origin:
    """The last line of the program's own that `error` passed."""
    own = [Origin(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_own(frame)]
    return own[-1] if own else Origin()
