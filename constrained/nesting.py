"""How much of a text is still open, read as JSON would be, whatever it is: a hint for `completion.py` where to go."""

from dataclasses import dataclass

__all__ = ["Nesting"]

_STRUCTURE = b'{[(}])"\\'
_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]


@dataclass(frozen=True, slots=True)
class Nesting:
    """Brackets and a quoted string that are open; a text with none of them stands where it began."""

    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    @property
    def open(self) -> int:
        """How many things are to be closed."""
        return self.depth + self.quoted

    def after(self, text: bytes) -> "Nesting":
        """The nesting after some more text."""
        depth, quoted, escaped = self.depth, self.quoted, self.escaped
        if not escaped and text.translate(None, _STRUCTURE) == text:
            return self
        for byte in text:
            if not quoted:
                quoted = byte == _QUOTE
                depth += (byte in b"{[(") - (byte in b"}])")
            elif escaped:
                escaped = False
            else:
                escaped, quoted = byte == _BACKSLASH, byte != _QUOTE
        return Nesting(depth, quoted, escaped)
