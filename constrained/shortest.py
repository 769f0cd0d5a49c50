"""The shortest text that makes one in which a pattern of a JSON schema finds something: a guess, for `guide.py`."""

from branchpoint.constrained.cfg import Cfg, Chars, Part, Rep, Seq, from_regex, prune
from branchpoint.constrained.charset import ANY
from branchpoint.constrained.ecma import has_branches, python_pattern
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.reading import Reading, read_nothing
from branchpoint.constrained.regex import parse_regex
from branchpoint.constrained.rules import make_rules

__all__ = ["Patterns"]


class Patterns:
    """Of one schema; remembers them."""

    def __init__(self) -> None:
        self._known: dict[str, Reading | None] = {}

    def rest(self, pattern: str, text: str = "") -> str | None:
        """What must come behind a text, as little as may be; None where nothing will do, or what isn't seen."""
        if pattern not in self._known:
            self._known[pattern] = _reading(pattern)
        reading = self._known[pattern]
        for char in text:
            reading = reading.step(char) if reading is not None else None
        if reading is None or reading.is_sentence:
            return None if reading is None else ""
        return next(reading.rests(len, 1), None)


def _reading(pattern: str) -> Reading | None:
    readable = python_pattern(pattern)
    if readable is None:
        return None
    try:
        return read_nothing(make_rules(prune(Cfg({"root": _found_in_text(readable)}, "root")), {}, len))
    except GrammarError:
        return None


def _found_in_text(pattern: str) -> Part:
    """A text in which a pattern finds something: all of it is matched between anchors, else anything may stand around."""
    anything = Rep(Chars(ANY), 0, None)
    whole = from_regex(parse_regex(pattern))
    if has_branches(pattern):
        return whole if "^" in pattern else Seq((anything, whole, anything))
    ends = pattern.endswith("$") and not pattern.endswith("\\$")
    return Seq((*(() if pattern.startswith("^") else (anything,)), whole, *(() if ends else (anything,))))
