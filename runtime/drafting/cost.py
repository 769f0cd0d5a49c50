"""What a step costs by the tokens in it, measured: the other half of the question how many guesses are worth verifying.

Fed with the time of every step that is not a large prefill; answers in seconds, or in relative terms while it knows little.
"""

__all__ = ["LARGEST", "StepCost"]

LARGEST = 256
"""Tokens of the largest step that is remembered."""
SHARE = 0.15  # of a new measurement in what is remembered
UNKNOWN_SLOPE = 0.02  # of a step's time, for each token more, where nothing larger was measured
OUTLIER = 3.0  # a step this many times longer than usual is taken for an interruption


class StepCost:
    """Mean seconds of a step by its number of tokens, recent steps first."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._order: list[int] = []

    def note(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        if not 0 < tokens <= LARGEST or seconds <= 0:
            return
        before = self._seconds.get(tokens)
        if before is None:
            self._seconds[tokens] = seconds
            self._order = sorted(self._seconds)
        else:
            self._seconds[tokens] = before + SHARE * (min(seconds, OUTLIER * before) - before)

    def estimate(self, tokens: int) -> float:
        """Seconds of a step of so many tokens; 1 and a little for each token where nothing was measured yet."""
        if not self._order:
            return 1.0 + UNKNOWN_SLOPE * tokens
        below = above = 0
        for known in self._order:
            if known <= tokens:
                below = known
            else:
                above = known
                break
        if not below:
            return self._seconds[above]
        if not above:
            return self._beyond(below, tokens)
        low, high = self._seconds[below], self._seconds[above]
        return low + max(0.0, high - low) * (tokens - below) / (above - below)

    def _beyond(self, largest: int, tokens: int) -> float:
        """Past the largest measured step: on along the line from the smallest to it."""
        last, smallest = self._seconds[largest], self._order[0]
        slope = UNKNOWN_SLOPE * last
        if smallest < largest:
            slope = max(0.0, last - self._seconds[smallest]) / (largest - smallest)
        return last + slope * (tokens - largest)
