"""What the rules of a grammar read character by character: words, single characters, free text.

`rules.py` makes them from a grammar's parts; `reading.py` follows a text with them.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from branchpoint.constrained.charset import CharSet, holds, liked
from branchpoint.constrained.outline import Until
from branchpoint.constrained.words import Words

__all__ = ["FreeText", "OneChar", "Terminal", "WordText"]

State = TypeVar("State")


class Terminal(Protocol[State]):
    """`start` is the state before its first character."""

    start: State

    def step(self, state: State, char: str) -> tuple[State | None, bool]:
        """The state from which it may go on behind one more character, None where it can't; and whether it may end there."""

    def rest(self, state: State) -> str | None:
        """A short text, the shortest that is known, behind which it ends; None where none is known."""

    def guesses(self, state: State) -> Iterable[str]:
        """Other texts that may come next, should `rest` be wrong."""


class WordText:
    """The text itself (at least one character); a state is how much is written."""

    start = 0

    def __init__(self, text: str) -> None:
        self._text = text

    def step(self, state: int, char: str) -> tuple[int | None, bool]:
        """See `Terminal`."""
        if self._text[state] != char:
            return None, False
        return (None, True) if state + 1 == len(self._text) else (state + 1, False)

    def rest(self, state: int) -> str:
        """What isn't written."""
        return self._text[state:]

    def guesses(self, state: int) -> Iterable[str]:
        """None: the rest is right."""
        return ()


class OneChar:
    """One character of a set; its state says nothing."""

    start = 0

    def __init__(self, chars: CharSet) -> None:
        self._chars = chars

    def step(self, state: int, char: str) -> tuple[int | None, bool]:
        """See `Terminal`."""
        return None, holds(self._chars, ord(char))

    def rest(self, state: int) -> str:
        """A letter or digit, if there is one."""
        return chr(liked(self._chars))

    def guesses(self, state: int) -> Iterable[str]:
        """None: the rest is right."""
        return ()


class FreeText:
    """See `outline.Until`; a state is what is written of the words that it looks for."""

    start = ""

    def __init__(self, until: Until, words: Words) -> None:
        self._stop = until.stop
        self._words = words
        self._rests: dict[str, str | None] = {}

    def step(self, state: str, char: str) -> tuple[str | None, bool]:
        """See `Terminal`."""
        suffix, stopped, excluded = self._words.step(state, char)
        if excluded or (stopped and self._stop not in stopped):
            return None, False
        return (None, True) if stopped else (suffix, self._stop is None)

    def rest(self, state: str) -> str | None:
        """The shortest text up to its stop."""
        if self._stop is None:
            return ""
        if state not in self._rests:
            self._rests[state] = self._words.rest(state, self._stop)
        return self._rests[state]

    def guesses(self, state: str) -> Iterable[str]:
        """None: the rest is right."""
        return ()
