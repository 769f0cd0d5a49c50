"""Simulated time: it stands still while Python runs, and is moved by the runner (a step) or the driver (nothing to do)."""

__all__ = ["SimulatedClock"]


class SimulatedClock:
    """Call it for the seconds since the start, as one calls `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def advance_to(self, when: float) -> None:
        """Let time pass until `when`, where that is still to come."""
        self.now = max(self.now, when)
