"""Finds stop strings in output that arrives in pieces, for `output.py`.

Works on UTF-8 bytes, in which a match of whole strings is a match of text. The result depends on the text only, never on where
its tokens end: the match that starts earliest wins, and of those that start together the shortest.
"""

from dataclasses import dataclass

__all__ = ["StopMatch", "StopScanner"]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Where a stop string lies in the output: bytes [start, end)."""

    stop: str
    start: int
    end: int


class StopScanner:
    """Scans for `stops` (non-empty strings). `safe` is how many bytes can no longer be part of a stop; the rest is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple((stop, stop.encode("utf-8", "surrogatepass")) for stop in stops)
        self._held = b""
        self._match: StopMatch | None = None
        self.safe = 0

    def feed(self, data: bytes) -> StopMatch | None:
        """Append `data`; the match, as soon as no earlier one can follow. Not to be called after a match."""
        self._held += data
        found = self._search()
        partial = self._partial()
        self._match = found
        if found is not None and partial >= found.start - self.safe:
            self.safe = found.start
            return found
        self._held = self._held[partial:]
        self.safe += partial
        return None

    def skip(self, data: bytes) -> None:
        """Append `data` in which no stop may match (nor begin)."""
        self.safe += len(self._held) + len(data)
        self._held = b""

    def finish(self) -> StopMatch | None:
        """Nothing follows: the match that was waiting for an earlier one to complete, if any."""
        return self._match

    def _search(self) -> StopMatch | None:
        best: StopMatch | None = None
        for stop, needle in self._stops:
            at = self._held.find(needle)
            if at >= 0:
                match = StopMatch(stop, self.safe + at, self.safe + at + len(needle))
                if best is None or (match.start, match.end) < (best.start, best.end):
                    best = match
        return best

    def _partial(self) -> int:
        """Where the longest tail of what is held begins that is the beginning of some stop; its length if there is none."""
        held = self._held
        best = len(held)
        for _, needle in self._stops:
            at = held.find(needle[:1], max(0, len(held) - len(needle) + 1), best)
            while at >= 0:
                if needle.startswith(held[at:]):
                    best = at
                    break
                at = held.find(needle[:1], at + 1, best)
        return best
