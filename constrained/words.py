"""Finds words in a text as it is written: where free text stops, and what mustn't stand in it.

Used by `spots.py`, and by `terminals.py` for the shortest way to a stop.
"""

from collections import deque

__all__ = ["Words"]

_MOST_LOOKED_AT = 4096


class Words:
    """`stops`, of which it tells which ended, and `excludes`, of which it tells whether one did. Remembers what was asked."""

    def __init__(self, stops: tuple[str, ...], excludes: tuple[str, ...]) -> None:
        self._stops = stops
        self._excludes = excludes
        self._begun = {word[:end] for word in (*stops, *excludes) for end in range(len(word))}
        self._known: dict[tuple[str, str], tuple[str, frozenset[str], bool]] = {}
        self.chars = frozenset("".join((*stops, *excludes)))

    def step(self, suffix: str, char: str) -> tuple[str, frozenset[str], bool]:
        """Behind one more character: what is written of words, the stops that end here, and whether something excluded does."""
        if (suffix, char) not in self._known:
            text = suffix + char
            rest = next((text[at:] for at in range(len(text)) if text[at:] in self._begun), "")
            stopped = frozenset(stop for stop in self._stops if text.endswith(stop))
            self._known[suffix, char] = rest, stopped, any(text.endswith(word) for word in self._excludes)
        return self._known[suffix, char]

    def rest(self, suffix: str, stop: str) -> str | None:
        """The shortest text behind which `stop` ends, as the first of the stops; None where none is found."""
        for begun in range(min(len(suffix), len(stop) - 1), -1, -1):
            if suffix.endswith(stop[:begun]) and self._stops_first(suffix, stop[begun:], stop):
                return stop[begun:]
        return self._sought(suffix, stop)

    def _stops_first(self, suffix: str, text: str, stop: str) -> bool:
        for at, char in enumerate(text):
            suffix, stopped, excluded = self.step(suffix, char)
            if excluded or stopped:
                return not excluded and stop in stopped and at == len(text) - 1
        return False

    def _sought(self, suffix: str, stop: str) -> str | None:
        chars = sorted(self.chars | {next(char for char in map(chr, range(0x61, 0x110000)) if char not in self.chars)})
        seen, waiting = {suffix}, deque([(suffix, "")])
        while waiting and len(seen) < _MOST_LOOKED_AT:
            at, written = waiting.popleft()
            for char in chars:
                reached, stopped, excluded = self.step(at, char)
                if stop in stopped and not excluded:
                    return written + char
                if not stopped and not excluded and reached not in seen:
                    seen.add(reached)
                    waiting.append((reached, written + char))
        return None
