"""What a step costs by the tokens in it: the other half of the question how many guesses are worth verifying.

Measured once, before anything runs: products work in tiles, and one token more may cost one more of these. What a step takes
beside other work on the machine says little about how two sizes compare.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from branchpoint.runtime.plan import Runner

__all__ = ["SIZES", "StepCost", "TimedRunner"]

SIZES = (1, 2, 4, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64)
"""Tokens of the steps that are measured: those about which tiles, and forms of the weights, change."""
UNKNOWN_SLOPE = 0.02  # of a step's time, for each token more, where nothing was measured


@runtime_checkable
class TimedRunner(Runner, Protocol):
    """A runner that knows what steps take which draw so many tokens, in seconds; the more sizes the better."""

    step_seconds: Mapping[int, float]


class StepCost:
    """Seconds of a step by its number of tokens, where `measured` says that of some."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        points = sorted((measured or {}).items())
        if len(points) < 2:
            points = [(1, 1.0), (1 + len(SIZES), 1.0 + UNKNOWN_SLOPE * len(SIZES))]
        self._points = points

    def estimate(self, tokens: int) -> float:
        """Seconds of a step of so many tokens: on the line between the next two sizes, and never less than a smaller step's."""
        points = self._points
        below, above = points[0], points[-1]
        if tokens < above[0]:
            above = next(point for point in points if point[0] > tokens)
            below = max((point for point in points if point[0] <= tokens), default=points[0])
        slope = max(0.0, above[1] - below[1]) / max(1, above[0] - below[0])
        return below[1] + slope * max(0, tokens - below[0])
