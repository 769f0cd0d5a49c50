"""JSON as it stands when its text is cut anywhere: open containers with the members so far, and the primitive being written.

`reader.py` builds it byte by byte, `judge.py` looks at it. Everything is immutable and shares its past, so a rollback is free.
"""

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from typing import Any

import jsonschema_rs

from branchpoint.constrained.schema import SchemaMap

__all__ = ["Cell", "Frame", "Node", "Open", "is_endless", "kind_of", "read_primitive", "unfinished", "unwritten", "written_key"]

_MOST_DIGITS, _EXPONENT_DIGITS = 3_000, 3
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number", Decimal: "number"}
_LONGEST_ESCAPE = 16
_QUOTE = b'"'[0]
_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*(\\(?:u[0-9A-Fa-f]{0,3})?)$")


def kind_of(value: object) -> str:
    """The JSON type of a value; integers are numbers."""
    return _KINDS.get(type(value), "null")


@lru_cache(maxsize=4096)
def written_key(name: str) -> bytes:
    """A key as JSON text, without its quotes."""
    return json.dumps(name, ensure_ascii=False)[1:-1].encode(errors="replace")


class Node:
    """A complete value. `verdicts` remembers by schema id what a validator said."""

    __slots__ = ("_canonical", "kind", "value", "verdicts")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.kind = kind_of(value)
        self.verdicts: dict[int, bool] = {}
        self._canonical: str | None = None

    @property
    def canonical(self) -> str:
        """One spelling for all that JSON Schema holds equal."""
        if self._canonical is None:
            self._canonical = jsonschema_rs.canonical.json.to_string(self.value)
        return self._canonical


class Cell:
    """A complete member of an open container, and those before it. `folds` remembers what was found up to here."""

    __slots__ = ("_names", "_seen", "before", "count", "folds", "key", "node")

    def __init__(self, before: "Cell | None", key: str | None, node: Node) -> None:
        self.before = before
        self.key = key
        self.node = node
        self.count: int = before.count + 1 if before else 1
        self.folds: dict[tuple[int, str], Any] = {}
        self._names: dict[str, Node] | None = None
        self._seen: frozenset[str] | None = None

    @property
    def names(self) -> dict[str, Node]:
        """The members of an object by name; not to be changed."""
        if self._names is None:
            self._names = {each.key: each.node for each in reversed(list(self.chain())) if each.key is not None}
        return self._names

    @property
    def seen(self) -> frozenset[str]:
        """The canonical spellings of all items."""
        if self._seen is None:
            self._seen = (self.before.seen if self.before else frozenset()) | {self.node.canonical}
        return self._seen

    def chain(self) -> Iterator["Cell"]:
        """This cell and those before it, last first."""
        at: Cell | None = self
        while at is not None:
            yield at
            at = at.before


class Frame:
    """An open container: where it stands, its members, the key whose value is being written, and what it must satisfy.

    `memo` is the judge's: what it found out about the member that is being written. `settled` is, too: final verdicts on this
    container and those that hold it, by depth and schema id, which stay whatever is added.
    """

    __slots__ = ("above", "cell", "depth", "duties", "is_object", "key", "loose", "memo", "settled")

    def __init__(
        self,
        above: "Frame | None",
        duties: tuple[SchemaMap, ...],
        *,
        is_object: bool,
        loose: bool,
        cell: Cell | None = None,
        key: str | None = None,
        settled: dict[tuple[int, int], bool] | None = None,
    ) -> None:
        self.above = above
        self.duties = duties
        self.is_object = is_object
        self.loose = loose  # whether it, or one that holds it, must be judged before it is complete
        self.cell = cell
        self.key = key
        self.memo: dict[tuple[str, str], Any] = {}
        self.depth: int = above.depth + 1 if above else 0
        if settled is None:
            settled = above.settled if above else {}
        self.settled: dict[tuple[int, int], bool] = settled.copy() if loose else {}

    def at_key(self, key: str) -> "Frame":
        """With a key whose value comes next."""
        return Frame(self.above, self.duties, is_object=True, loose=self.loose, cell=self.cell, key=key, settled=self.settled)

    def with_member(self, node: Node) -> "Frame":
        """With one more complete member."""
        cell = Cell(self.cell, self.key, node)
        return Frame(self.above, self.duties, is_object=self.is_object, loose=self.loose, cell=cell, settled=self.settled)

    @property
    def names(self) -> dict[str, Node]:
        """The complete members of an object."""
        return self.cell.names if self.cell else {}

    @property
    def count(self) -> int:
        """Complete members."""
        return self.cell.count if self.cell else 0

    def close(self) -> Node:
        """The container as a value."""
        if self.is_object:
            return Node({name: node.value for name, node in self.names.items()})
        return Node([cell.node.value for cell in reversed(list(self.cell.chain() if self.cell else ()))])


class Open:
    """A value that isn't complete: a container with the member being written, or a primitive with its text so far.

    `kind` is its JSON type, or None where nothing of it is written yet. `verdicts` remembers the judge's, by schema id.
    """

    __slots__ = ("_decoded", "child", "frame", "kind", "settled", "storing", "text", "verdicts")

    def __init__(self, kind: str | None, frame: Frame | None = None, child: "Open | None" = None, text: bytes = b"") -> None:
        self.kind = kind
        self.frame = frame
        self.child = child
        self.text = text
        self.verdicts: dict[int, bool | None] = {}
        self.settled: dict[tuple[int, int], bool] | None = None  # those of the innermost container
        self.storing = False
        self._decoded: str | None = None

    @property
    def decoded(self) -> str:
        """The whole characters of a string that is being written, quote first."""
        if self._decoded is None:
            self._decoded = _whole_characters(self.text)
        return self._decoded


def unwritten() -> Iterator[Open]:
    """A value of each type before anything is known of it but that."""
    for kind, text in (("object", b""), ("array", b""), ("string", b'"'), ("number", b""), ("boolean", b""), ("null", b"")):
        is_object = kind == "object"
        frame = None if text or kind not in ("object", "array") else Frame(None, (), is_object=is_object, loose=True)
        yield Open(kind, frame, text=text)


def _whole_characters(text: bytes) -> str:
    if b"\\" not in text:
        return text[1:].decode(errors="ignore")
    for cut in range(min(_LONGEST_ESCAPE, len(text))):
        try:
            return str(json.loads((text[: len(text) - cut] + b'"').decode()))
        except ValueError:
            continue
    return ""


def unfinished(text: bytes) -> bytes:
    """What is begun of a character at the end of a string's text: an escape, or bytes of one that has several."""
    escape = _ESCAPE.search(text[-2 * _LONGEST_ESCAPE :]) if b"\\" in text else None
    if escape is not None:
        return escape[1]
    tail = text[-1:]
    while tail[:1] and 0x80 <= tail[0] < 0xC0 and len(tail) < 4:
        tail = text[-len(tail) - 1 :]
    whole = 1 if tail[:1] < b"\xc0" else 2 if tail < b"\xe0" else 3 if tail < b"\xf0" else 4
    return tail if len(tail) < whole else b""


def is_endless(text: bytes) -> bool:
    """Whether this is the text of a number of thousands of digits: the validator would write out all of them, for minutes."""
    if len(text) <= _EXPONENT_DIGITS or text[0] == _QUOTE:
        return False
    digits, _, exponent = text.lower().partition(b"e")
    return len(digits) > _MOST_DIGITS or (len(exponent.lstrip(b"+0")) > _EXPONENT_DIGITS and not exponent.startswith(b"-"))


def read_primitive(text: bytes) -> Node | None:
    """A primitive's value, None where it has none (a lone surrogate, a number cut short); infinity for what `is_endless`."""
    if is_endless(text):
        return Node(math.inf)
    try:
        value = json.loads(text.decode())
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, float) and not math.isfinite(value):
            value = Decimal(text.decode())
    except ValueError:
        return None
    return Node(value)
