"""A JSON value among other text, as the rules of a grammar read it: see `terminals.py`. What it needs, `guide.py` tells."""

import re
from collections.abc import Iterator

from branchpoint.constrained.guide import Guide
from branchpoint.constrained.json_at import JsonAt

__all__ = ["JsonText"]

_SCALAR = frozenset("0123456789+-.eEtrufalsn")
_WHOLE = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")


class JsonText:
    """A value that begins with one of `starts`; a state is where the text stands in it."""

    def __init__(self, guide: Guide, starts: str) -> None:
        self.start = guide.start()
        self._guide = guide
        self._starts = starts

    def step(self, state: JsonAt, char: str) -> tuple[JsonAt | None, bool]:
        """See `Terminal`."""
        if char not in (self._starts if state == self.start else _SCALAR) and state.frame is None and state.at in "vn":
            return None, False
        reached = self._guide.after(state, char.encode())
        if reached.at == "n" and reached.frame is None:
            return reached, _WHOLE.fullmatch(reached.text) is not None
        return (None, True) if reached.at == "e" else (reached, False)

    def rest(self, state: JsonAt) -> str | None:
        """A short text to its end."""
        rest = self._guide.rest(state)
        return None if rest is None else rest.decode(errors="replace")

    def guesses(self, state: JsonAt) -> Iterator[str]:
        """What may come next in it."""
        return (guess.decode(errors="replace") for guess in self._guide.guesses(state))
