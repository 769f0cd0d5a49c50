r"""Grammars in GBNF (llama.cpp's notation), read in one pass into a `Cfg`; every mistake is told with line and column.

Newlines are spaces: a rule ends where the next `name ::=` begins, so alternatives may stand on lines of their own.
"""

import bisect
import re
from dataclasses import dataclass, field

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Part, Ref, Rep, Seq
from branchpoint.constrained.charset import ANY, CharSet, complement, union
from branchpoint.constrained.errors import InvalidGrammar, LimitExceeded, shorten

__all__ = ["read_gbnf"]

_MAX_DEPTH = 60
_MAX_REPEAT = 1_000_000
_SKIPPED = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_NAME = re.compile(r"[\w-]+")
_ARROW = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*::=")
_PLAIN = re.compile(r'[^"\\\n]+')
_BOUNDS = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}")
_CODES = {"x": 2, "u": 4, "U": 8}
_SHORT = {"n": "\n", "r": "\r", "t": "\t"}
_LITERAL_ESCAPES = "\"\\[]-^/'"


def read_gbnf(text: str) -> Cfg:
    """The grammar of the rule `root`. Raises InvalidGrammar with line and column, LimitExceeded."""
    return _Reader(text).grammar()


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    depth: int = 0
    rules: dict[str, Part] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [0, *(found.end() for found in re.finditer("\n", self.text))]

    def grammar(self) -> Cfg:
        self._skip()
        while self.at < len(self.text):
            start = self.at
            name = self._name("a rule's name")
            arrow = _ARROW.match(self.text, self.at)
            if arrow is None:
                raise self._wrong("'::=' after the rule's name")
            if name in self.defined:
                raise self._wrong(f"each rule once; {name!r} was defined at {self._place(self.defined[name])}", start)
            self.defined[name] = start
            self.at = arrow.end()
            self._skip()
            self.rules[name] = self._alternatives()
            if self.at < len(self.text) and not self._at_rule():
                raise self._wrong("the rule to end or go on here")
        for name, place in self.used.items():
            if name not in self.rules:
                raise self._wrong(f"a rule that is defined, there is none named {shorten(name)}", place)
        if "root" not in self.rules:
            raise InvalidGrammar("Expected a rule named root, where a grammar begins; found none.")
        return Cfg(self.rules, "root")

    def _alternatives(self) -> Part:
        branches = [self._sequence()]
        while self.text.startswith("|", self.at):
            self.at += 1
            self._skip()
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def _sequence(self) -> Part:
        parts: list[Part] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)" and not self._at_rule():
            part = self._item()
            self._skip()
            while (repeated := self._repeat(part)) is not None:
                part = repeated
            parts.append(part)
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _at_rule(self) -> bool:
        name = _NAME.match(self.text, self.at)
        return name is not None and _ARROW.match(self.text, name.end()) is not None

    def _item(self) -> Part:
        char = self.text[self.at]
        if char == '"':
            return Lit(self._literal())
        if char == "[":
            return self._class()
        if char == ".":
            self.at += 1
            return Chars(ANY)
        if char == "(":
            return self._group()
        if char == "<":
            raise self._wrong("characters; special tokens never match text here")
        start = self.at
        name = self._name("a literal, a class, a group or a rule's name")
        self.used.setdefault(name, start)
        return Ref(name)

    def _group(self) -> Part:
        opened = self.at
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise LimitExceeded(f"A grammar may nest {_MAX_DEPTH} groups; more are open at {self._place(opened)}.")
        self.at += 1
        self._skip()
        part = self._alternatives()
        if not self.text.startswith(")", self.at):
            raise self._wrong(f"')' for the group that opens at {self._place(opened)}")
        self.at += 1
        self.depth -= 1
        return part

    def _repeat(self, part: Part) -> Part | None:
        char = self.text[self.at : self.at + 1]
        if char in ("*", "+", "?") and char:
            self.at += 1
            self._skip()
            return Rep(part, int(char == "+"), 1 if char == "?" else None)
        if char != "{":
            return None
        bounds = _BOUNDS.match(self.text, self.at)
        if bounds is None:
            raise self._wrong("a repeat {m}, {m,} or {m,n}")
        if max(len(bounds[1]), len(bounds[3] or "")) > 7 or max(int(bounds[1]), int(bounds[3] or 0)) > _MAX_REPEAT:
            raise LimitExceeded(f"A repeat may count to {_MAX_REPEAT:,}, got {shorten(bounds[0])} at {self._place(self.at)}.")
        low = int(bounds[1])
        high = low if bounds[2] is None else (int(bounds[3]) if bounds[3] else None)
        if high is not None and high < low:
            raise self._wrong("a repeat whose second number is not below its first")
        self.at = bounds.end()
        self._skip()
        return Rep(part, low, high)

    def _literal(self) -> str:
        opened, pieces = self.at, list[str]()
        self.at += 1
        while not self.text.startswith('"', self.at):
            plain = _PLAIN.match(self.text, self.at)
            if plain is not None:
                pieces.append(plain[0])
                self.at = plain.end()
            elif self.at < len(self.text) and self.text[self.at] != "\n":
                pieces.append(self._char())
            else:
                raise self._wrong("a closing '\"' on the same line", opened)
        self.at += 1
        return "".join(pieces)

    def _class(self) -> Part:
        opened = self.at
        self.at += 1
        negated = self.text.startswith("^", self.at)
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise self._wrong("a closing ']'", opened)
            start = self.at
            low = high = ord(self._char())
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                if self.at >= len(self.text):
                    raise self._wrong("a closing ']'", opened)
                high = ord(self._char())
            if high < low:
                raise self._wrong("a range that runs upwards", start)
            ranges.append((low, high))
        self.at += 1
        if not ranges:
            raise self._wrong("at least one character in the class", opened)
        chars: CharSet = union(ranges)
        return Chars(complement(chars) if negated else chars)

    def _char(self) -> str:
        """One character of a literal or a class, escapes read."""
        char = self.text[self.at]
        if char != "\\":
            if 0xD800 <= ord(char) <= 0xDFFF:
                raise self._wrong("Unicode text, got a lone surrogate")
            self.at += 1
            return char
        kind = self.text[self.at + 1 : self.at + 2]
        if kind in _CODES:
            digits = self.text[self.at + 2 : self.at + 2 + _CODES[kind]]
            if len(digits) != _CODES[kind] or not re.fullmatch("[0-9A-Fa-f]+", digits):
                raise self._wrong(f"{_CODES[kind]} hexadecimal digits after \\{kind}")
            code = int(digits, 16)
            if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
                raise self._wrong(f"a Unicode scalar value, got the escape \\{kind}{digits}")
            self.at += 2 + len(digits)
            return chr(code)
        if not kind or kind not in _LITERAL_ESCAPES + "nrt":
            raise self._wrong('an escape out of \\n \\r \\t \\" \\\\ \\[ \\] \\xNN \\uNNNN \\UNNNNNNNN')
        self.at += 2
        return _SHORT.get(kind, kind)

    def _name(self, what: str) -> str:
        name = _NAME.match(self.text, self.at)
        if name is None:
            raise self._wrong(what)
        self.at = name.end()
        return name[0]

    def _skip(self) -> None:
        skipped = _SKIPPED.match(self.text, self.at)
        if skipped is not None:
            self.at = skipped.end()

    def _place(self, at: int) -> str:
        line = bisect.bisect_right(self.lines, at)
        return f"line {line}, column {at - self.lines[line - 1] + 1}"

    def _wrong(self, expected: str, at: int | None = None) -> InvalidGrammar:
        place = self.at if at is None else at
        seen = self.text[place : place + 20]
        return InvalidGrammar(f"Expected {expected}, at {self._place(place)}: {shorten(repr(seen)) if seen else 'the end'}.")
