"""Finds where a JSON object ends in text that comes in pieces. Used by `reply` to cut a call's arguments out."""

__all__ = ["JsonScan"]


class JsonScan:
    """Counts brackets outside of strings. Leading whitespace is part of the value."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to the value; all, while it hasn't ended."""
        for place, char in enumerate(text):
            if self.ended:
                return place
            if self._in_string:
                self._string(char)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                self.ended = self._depth <= 0
        return len(text)

    def _string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
