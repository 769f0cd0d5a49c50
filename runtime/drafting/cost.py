"""What a step costs by the tokens in it: the other half of the question how many guesses are worth verifying.

`StepCost` is measured once, before anything runs: products work in tiles, and one token more may cost one more of these.
`Usual` is what steps took since then, beside whatever else the machine did: no guide to what will pay, but a second witness of
what didn't.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Protocol, runtime_checkable

from branchpoint.runtime.plan import Runner

__all__ = ["SIZES", "StepCost", "TimedRunner", "Usual"]

SIZES = (1, 2, 4, 7, 8, 12, 16, 17, 24, 32, 33, 48, 64)
"""Tokens of the steps that are measured: those about which tiles, and forms of the weights, change."""
SHARE = 0.1  # of the latest step in what is known of its size
MOST = 3.0  # times the usual time, beyond which it was something else that a step waited for
FIRST, LATEST = 8, 64  # steps with guesses, after which one goes without: where none was seen yet, and later
UNKNOWN_SLOPE = 0.02  # of a step's time, for each token more, where nothing was measured


@runtime_checkable
class TimedRunner(Runner, Protocol):
    """A runner that knows what steps take which draw so many tokens, in seconds; the more sizes the better."""

    step_seconds: Mapping[int, float]


class StepCost:
    """Seconds of a step by its number of tokens, where `measured` says that of some.

    A step takes no longer than one of more tokens: where it seemed to, something else had the machine.
    """

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        points = sorted((measured or {}).items())
        if len(points) < 2:
            points = [(1, 1.0), (1 + len(SIZES), 1.0 + UNKNOWN_SLOPE * len(SIZES))]
        least = list(accumulate((seconds for _, seconds in reversed(points)), min))[::-1]
        self._points = [(tokens, seconds) for (tokens, _), seconds in zip(points, least, strict=True)]

    def estimate(self, tokens: int) -> float:
        """Seconds of a step of so many tokens: on the line between the next two sizes."""
        points = self._points
        below, above = points[0], points[-1]
        if tokens < above[0]:
            above = next(point for point in points if point[0] > tokens)
            below = max((point for point in points if point[0] <= tokens), default=points[0])
        slope = (above[1] - below[1]) / max(1, above[0] - below[0])
        return below[1] + slope * max(0, tokens - below[0])


class Usual:
    """What steps that drew without guesses took lately, by their tokens. Its memory ends with `SIZES`."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._since: dict[int, int] = {}  # steps with guesses since the last one without

    def note(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens, each of them drawn at, took so long."""
        if tokens <= SIZES[-1]:
            known = self._seconds.get(tokens, seconds)
            self._seconds[tokens] = known + SHARE * (min(seconds, MOST * known) - known)
            self._since[tokens] = 0

    def is_due(self, tokens: int) -> bool:
        """Whether a step of so many tokens should go without guesses, to see what it takes."""
        return self._since.get(tokens, 0) >= (LATEST if tokens in self._seconds else FIRST)

    def excess(self, tokens: int, seconds: float) -> float:
        """By how many times its own time a step that would have had `tokens` tokens without its guesses took longer.

        Not at all where no such step is known.
        """
        if tokens <= SIZES[-1]:
            self._since[tokens] = self._since.get(tokens, 0) + 1
        known = self._seconds.get(tokens)
        return min(seconds / known, MOST) - 1 if known else 0.0
