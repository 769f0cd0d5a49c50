"""Which line of a program called: what errors, reports and graphs name."""

import sys

from branchpoint.lang.errors import Origin

__all__ = ["caller"]


def caller() -> Origin:
    """The line of the program that called into this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("branchpoint."):
        frame = frame.f_back
    return Origin(frame.f_code.co_filename, frame.f_lineno)
