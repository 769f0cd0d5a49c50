"""What a model writes, told apart while it comes: reasoning, content, calls of tools. Fed by the views, a sample at a time.

Nothing is taken back: text that may still turn out to be a tag is held until it is known. What looked like a call and is none
is content again.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from branchpoint.runtime.serving.json_scan import JsonScan

__all__ = [
    "CLOSE",
    "OPEN",
    "PLAIN",
    "THINK",
    "THOUGHT",
    "Arguments",
    "CallStart",
    "Content",
    "Format",
    "Part",
    "Reasoning",
    "ReplyParser",
]

CallShape = Literal["none", "tagged", "bare", "list", "arguments"]
"""How calls stand in the output: none; `<tool_call>{…}</tool_call>` amid text; one `{name, arguments}`; a list of those; or
nothing but the arguments of the one tool that is named."""

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_LONGEST_CALL = 2**16


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of the last call's arguments; `complete` with its last piece."""

    text: str
    complete: bool = False


Part = Content | Reasoning | CallStart | Arguments


@dataclass(frozen=True, slots=True)
class Format:
    """How a reply is to be read. `names` are the tools that exist, `named` the one whose arguments are the whole output.

    `reasons`: the output may begin with `<think>`; `thinking`: the prompt ended with it.
    """

    shape: CallShape = "none"
    names: frozenset[str] = frozenset()
    named: str = ""
    reasons: bool = False
    thinking: bool = False


PLAIN = Format()
"""Nothing but content."""


class ReplyParser:
    """Reads one sample's text. `feed` gives what became certain, `end` the rest."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._rest = ""
        self._scan: JsonScan | None = None
        self._state: Literal["begin", "thinking", "gap", "body", "call", "plain", "after", "arguments"] = "body"
        if form.reasons:
            self._state = "thinking" if form.thinking else "begin"
        self._opened = False

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is reasoning."""
        return self._state == "thinking"

    def feed(self, text: str) -> list[Part]:
        """Take more of the output."""
        self._rest += text
        return _merged(self._take(last=False))

    def end(self) -> list[Part]:
        """The output has ended: what was held back."""
        return _merged(self._take(last=True))

    def _take(self, *, last: bool) -> Iterator[Part]:
        while True:
            before = (self._state, len(self._rest))
            yield from getattr(self, f"_{self._state}")(last)
            if before == (self._state, len(self._rest)) or not self._rest:
                return

    def _begin(self, last: bool) -> Iterator[Part]:
        stripped = self._rest.lstrip()
        if stripped.startswith(THINK):
            self._rest, self._state = stripped[len(THINK) :], "thinking"
        elif last or not THINK.startswith(stripped):
            self._state = "body"
        yield from ()

    def _thinking(self, last: bool) -> Iterator[Part]:
        text, found = self._until(THOUGHT, last=last)
        if not self._opened:
            text = text.lstrip("\n")
        if text:
            self._opened = True
            yield Reasoning(text)
        if found:
            self._state = "gap"

    def _gap(self, last: bool) -> Iterator[Part]:
        """Whitespace behind reasoning, or behind a call, belongs to neither."""
        self._rest = self._rest.lstrip()
        if self._rest:
            self._state = "body"
        yield from ()

    def _body(self, last: bool) -> Iterator[Part]:
        shape = self._form.shape
        if shape == "arguments":
            yield CallStart(self._form.named)
            self._scan, self._state = JsonScan(), "arguments"
        elif shape in ("bare", "list"):
            self._state = "call"
        else:
            text, found = self._until(OPEN, last=last) if shape == "tagged" else (self._all(), False)
            if text:
                yield Content(text)
            if found:
                self._state = "call"

    def _call(self, last: bool) -> Iterator[Part]:
        """Before a call's arguments: its name, and the key that they stand under."""
        if self._form.shape == "list":
            self._rest = self._rest.lstrip("[, \n")
        head = _HEAD.match(self._rest)
        name = _string(head[1]) if head else ""
        if head and name in self._form.names:
            yield CallStart(name)
            self._rest = self._rest[head.end() :]
            self._scan, self._state = JsonScan(), "arguments"
        elif self._form.shape == "tagged":
            if CLOSE in self._rest or last or len(self._rest) > _LONGEST_CALL:
                yield from self._whole_call()
        elif last or self._rest.lstrip()[:1] not in ("{", ""):
            self._state = "plain"

    def _plain(self, last: bool) -> Iterator[Part]:
        """An output that should be calls and isn't."""
        text = self._all()
        if text:
            yield Content(text)

    def _whole_call(self) -> Iterator[Part]:
        """A tagged call whose keys stand in another order, or text that is no call."""
        body, close, rest = self._rest.partition(CLOSE)
        parsed = _call_of(body) if close else None
        self._state = "body"
        if parsed is None or parsed[0] not in self._form.names:
            self._rest = rest if close else ""
            yield Content(OPEN + body + close)
            return
        self._rest = rest
        yield CallStart(parsed[0])
        yield Arguments(parsed[1], complete=True)

    def _arguments(self, last: bool) -> Iterator[Part]:
        scan = self._scan
        assert scan is not None, "arguments are scanned"
        length = scan.feed(self._rest)
        text, self._rest = self._rest[:length], self._rest[length:]
        if text or scan.ended:
            yield Arguments(text, complete=scan.ended)
        if scan.ended:
            self._state = "after"

    def _after(self, last: bool) -> Iterator[Part]:
        """Behind a call's arguments: its closing brace and tag; then text, or the next call."""
        if self._form.shape == "tagged":
            _, found = self._until(CLOSE, last=last)
            if found:
                self._state = "gap"
        elif self._form.shape == "list" and "{" in self._rest:
            self._rest = self._rest[self._rest.index("{") :]
            self._state = "call"
        else:
            self._rest = ""
        yield from ()

    def _all(self) -> str:
        text, self._rest = self._rest, ""
        return text

    def _until(self, tag: str, *, last: bool) -> tuple[str, bool]:
        """The text before `tag`, which is dropped, and whether it was there; what may be its beginning is held back."""
        at = self._rest.find(tag)
        if at >= 0:
            text, self._rest = self._rest[:at], self._rest[at + len(tag) :]
            return text, True
        held = 0 if last else next((size for size in range(len(tag) - 1, 0, -1) if self._rest.endswith(tag[:size])), 0)
        cut = len(self._rest) - held
        text, self._rest = self._rest[:cut], self._rest[cut:]
        return text, False


def _merged(parts: Iterator[Part]) -> list[Part]:
    """Neighbouring texts of one kind as one."""
    ready = list[Part]()
    for part in parts:
        before = ready[-1] if ready else None
        if isinstance(part, Content) and isinstance(before, Content):
            ready[-1] = Content(before.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(before, Reasoning):
            ready[-1] = Reasoning(before.text + part.text)
        else:
            ready.append(part)
    return ready


def _string(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""


def _call_of(text: str) -> tuple[str, str] | None:
    """Name and arguments (as JSON text) of a call, None where it is none."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        return None
    return value["name"], json.dumps(arguments, ensure_ascii=False)
