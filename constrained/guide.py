"""What a JSON value under a schema still needs, told from its text so far: guesses at the shortest way to its end.

Asked by `completion.py`, which tries them on the grammar itself: so they may be wrong.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.guide_values import LONGEST, ShortValues, known_texts, rest_of_number
from branchpoint.constrained.partial import written_key
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Guide", "JsonPlace", "json_place"]

_MOST_PARTS = 48
_SPACE = frozenset(b" \t\r\n")
_LITERALS = (b"true", b"false", b"null")


@dataclass(frozen=True, slots=True)
class _Frame:
    """An open container: what its schemas are, the keys it has (or the key whose value comes), how many members."""

    above: "_Frame | None"
    is_object: bool
    parts: tuple[SchemaMap, ...]
    names: frozenset[str] = frozenset()
    key: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class _At:
    """Where a text stands: `at` says what comes next, `text` is the string, key or number that is being written.

    `at`: v(alue), k(ey), c(olon), s(tring), q(uoted key), n(umber or literal), a(fter a value), e(nd).
    """

    at: str
    frame: _Frame | None
    parts: tuple[SchemaMap, ...]
    text: bytes = b""
    opened: bool = False


class Guide:
    """For one normalised schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = Definitions(root.get("$defs", {}) if isinstance(root, dict) else {})
        self._values = ShortValues(self._definitions)

    def start(self) -> _At:
        """Before the first byte."""
        return _At("v", None, tuple(self._parts([self._root])))

    def after(self, place: _At, text: bytes) -> _At:
        """The place after some more text, which the grammar takes."""
        at = 0
        while at < len(text):
            if place.at in "sq":
                end = _closing_quote(place.text, text, at)
                if end is None:
                    return replace(place, text=place.text + text[at:])
                place = self._string(place, place.text + text[at:end])
                at = end + 1
            else:
                place = self._byte(place, text[at : at + 1])
                at += 1
        return place

    def _byte(self, place: _At, byte: bytes) -> _At:
        if place.at == "n":
            if byte[0] in _SPACE or byte in b",]}":
                return self._byte(_done(place.frame), byte)
            return replace(place, text=place.text + byte)
        if byte[0] in _SPACE:
            return place
        frame = place.frame
        if byte in b"}]":
            return _done(frame.above if frame else None)
        if byte == b'"':
            return _At("q", frame, ()) if place.at == "k" else _At("s", frame, place.parts)
        if byte in b"{[":
            opened = _Frame(frame, byte == b"{", place.parts)
            return _At("k", opened, (), opened=True) if opened.is_object else _At("v", opened, self._items(opened), opened=True)
        if byte == b":":
            return replace(place, at="v")
        if byte == b",":
            return _At("k", frame, ()) if frame and frame.is_object else _At("v", frame, self._items(frame))
        return _At("n", frame, place.parts, byte)

    def _string(self, place: _At, text: bytes) -> _At:
        if place.at == "s" or place.frame is None:
            return _done(place.frame)
        try:
            key = str(json.loads(b'"' + text + b'"'))
        except ValueError:
            key = ""
        frame = replace(place.frame, names=place.frame.names | {key}, key=key)
        return _At("c", frame, tuple(self._parts(self._properties(frame))))

    def _items(self, frame: _Frame | None) -> tuple[SchemaMap, ...]:
        found = list[Schema]()
        for part in frame.parts if frame else ():
            first = part.get("prefixItems", ())
            found.append(first[frame.count] if frame and frame.count < len(first) else part.get("items", True))
        return tuple(self._parts(found))

    def _properties(self, frame: _Frame) -> Iterator[Schema]:
        for part in frame.parts:
            if frame.key in (known := part.get("properties", {})):
                yield known[frame.key]
                continue
            yield from part.get("patternProperties", {}).values()
            yield part.get("additionalProperties", True)

    def _parts(self, schemas: Sequence[Schema] | Iterator[Schema]) -> Iterator[SchemaMap]:
        """The schemas that may apply in place, those that always do first."""
        waiting, seen, later = list(schemas), set[int](), list[Schema]()
        while (waiting or later) and len(seen) < _MOST_PARTS:
            if not waiting:
                waiting, later = later, []
            schema = waiting.pop(0)
            if isinstance(schema, bool) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            waiting += [self._definitions[schema["$ref"]]] if "$ref" in schema else []
            waiting += schema.get("allOf", ())
            later += [each for word in ("anyOf", "oneOf") for each in schema.get(word, ())]
            later += [schema[word] for word in ("then", "else") if word in schema]
            later += schema.get("dependentSchemas", {}).values()

    def guesses(self, place: _At) -> Iterator[bytes]:
        """Texts that may come next, those that lead to the end soonest first."""
        match place.at:
            case "v":
                yield from [b"]"] if place.opened else []
                yield from self._wanted(place.frame)
                yield from self._values.under(place.parts)
                yield from (b"0", b'"', b"{", b"[")
            case "k":
                yield from [b"}"] if place.opened else []
                yield from self._members(place.frame, b'"')
            case "q":
                yield from self._members(place.frame, place.text)
                yield b'":'
            case "c":
                yield b":"
            case "s":
                yield from self._strings(place)
            case "n":
                yield from (each[len(place.text) :] for each in _LITERALS if each.startswith(place.text) and each != place.text)
                yield from (rest for part in place.parts if (rest := rest_of_number(part, place.text)))
                yield from self._ends(place.frame)
            case "a":
                yield from self._ends(place.frame)

    def _ends(self, frame: _Frame | None) -> Iterator[bytes]:
        if frame is None:
            return
        yield b"}" if frame.is_object else b"]"
        if frame.is_object:
            yield from (b"," + each for each in self._members(frame, b'"'))
        else:
            values = (*self._wanted(frame), *self._values.under(self._items(frame)))
            yield from (b"," + each for each in values)
        yield b","

    def _strings(self, place: _At) -> Iterator[bytes]:
        whole = b'"' + place.text
        for part in place.parts:
            yield from (text[len(whole) :] for text in known_texts(part) if text.startswith(whole))
        yield b'"'
        least = max((part.get("minLength", 0) for part in place.parts), default=0)
        yield b"a" * (min(least, LONGEST) - len(place.text.decode(errors="replace"))) + b'"'

    def _members(self, frame: _Frame | None, begun: bytes) -> Iterator[bytes]:
        """Members that an object lacks, as they go on from what is begun of a key; with their values where these are known."""
        if frame is None:
            return
        for name in self._lacking(frame):
            key = b'"' + written_key(name) + b'":'
            whole = begun if begun == b'"' else b'"' + begun
            if not key.startswith(whole):
                continue
            rest = key if begun == b'"' else key[len(whole) :]
            values = self._values.under(tuple(self._parts(self._properties(replace(frame, key=name)))))
            yield from (rest + value for value in values[:1])
            yield rest

    def _wanted(self, frame: _Frame | None) -> Iterator[bytes]:
        """Members that an array must contain, whether it has them or not."""
        for part in frame.parts if frame else ():
            if "contains" in part and not (frame and frame.is_object):
                yield from self._values.under(tuple(self._parts([part["contains"]])))

    def _lacking(self, frame: _Frame) -> dict[str, None]:
        """Keys that an object doesn't have yet: those it must have, those it may have to, the others."""
        found: dict[str, None] = {}
        for part in frame.parts:
            needed = set(part.get("required", ()))
            for name, others in part.get("dependentRequired", {}).items():
                needed |= set(others) if name in frame.names else set()
            found |= dict.fromkeys(name for name in part.get("properties", {}) if name in needed)
            found |= dict.fromkeys(name for name in part.get("required", ()))
            found |= dict.fromkeys(sorted(needed))
        for part in frame.parts:
            found |= dict.fromkeys(part.get("properties", {}))
        return {name: None for name in found if name not in frame.names}


def _done(frame: _Frame | None) -> _At:
    """A value is complete."""
    return _At("e", None, ()) if frame is None else _At("a", replace(frame, count=frame.count + 1), ())


def _closing_quote(before: bytes, text: bytes, start: int) -> int | None:
    escaped = (len(before) - len(before.rstrip(b"\\"))) % 2 == 1
    for at in range(start, len(text)):
        if escaped:
            escaped = False
        elif text[at] == 0x5C:
            escaped = True
        elif text[at] == 0x22:
            return at
    return None


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """Where a text stands, as `guide` reads it."""

    guide: Guide
    at: _At

    def after(self, text: bytes) -> "JsonPlace":
        """The place after some more text, which the grammar takes."""
        return JsonPlace(self.guide, self.guide.after(self.at, text))

    def guesses(self) -> Iterator[bytes]:
        """Texts that may come next, those that lead to the end soonest first."""
        return self.guide.guesses(self.at)


def json_place(root: Schema) -> JsonPlace:
    """The place before a value under a normalised schema."""
    guide = Guide(root)
    return JsonPlace(guide, guide.start())
