"""Short whole JSON values under a schema, read from the schema alone: guesses, for `guide.py`.

Keywords that only narrow are passed over, since every guess is tried on the grammar itself.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.partial import written_key
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.shortest import shortest_match

__all__ = ["LONGEST", "ShortValues", "known_texts", "rest_of_number"]

LONGEST = 10_000
"""Characters of a string up to which it is written out."""

_DEEPEST = 24
_FORMATS = {
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@a.aa",
    "hostname": "a.aa",
    "ipv4": "1.1.1.1",
    "ipv6": "::1",
    "uri": "a:a",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
_MOST_TEXTS = 6
_MOST_DIGITS = 40


class ShortValues:
    """For subschemas of one schema, whose definitions these are; only remembers what it found."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._texts: dict[tuple[int, ...], tuple[bytes, ...]] = {}

    def under(self, parts: tuple[SchemaMap, ...]) -> tuple[bytes, ...]:
        """Short whole values under schemas that may apply."""
        key = tuple(map(id, parts))
        if key not in self._texts:
            self._texts[key] = ()  # while it is asked for, a value within itself is not known
            texts = {text for part in parts or ({},) for text in self._of(part, 0)}
            self._texts[key] = tuple(sorted(texts, key=lambda text: (len(text), text)))[:_MOST_TEXTS]
        return self._texts[key]

    def _of(self, schema: Schema, depth: int) -> Iterator[bytes]:
        """Short values under one schema, alone."""
        if schema is False or depth > _DEEPEST:
            return
        if schema is True:
            yield b"0"
            return
        known = list(_known_values(schema))
        if known:
            yield from sorted(map(_written, known), key=len)[:_MOST_TEXTS]
            return
        branches = [each for word in ("anyOf", "oneOf") for each in schema.get(word, ())]
        inner = [self._definitions[schema["$ref"]]] if "$ref" in schema else []
        inner += schema.get("allOf", ())
        kinds = schema.get("type")
        if kinds is None and (branches or inner):
            for each in (*inner, *branches):
                yield from self._of(each, depth + 1)
            return
        for kind in [kinds] if isinstance(kinds, str) else kinds or ("integer",):
            text = self._kind(kind, schema, depth)
            if text is not None:
                yield text

    def _kind(self, kind: str, schema: SchemaMap, depth: int) -> bytes | None:
        match kind:
            case "null":
                return b"null"
            case "boolean":
                return b"true"
            case "integer" | "number":
                return _number(schema)
            case "string":
                return _string(schema)
            case "array":
                return self._array(schema, depth)
            case _:
                return self._object(schema, depth)

    def _array(self, schema: SchemaMap, depth: int) -> bytes | None:
        first, texts = schema.get("prefixItems", ()), list[bytes]()
        for at in range(min(schema.get("minItems", 0), 1000)):
            text = self._first(first[at] if at < len(first) else schema.get("items", True), depth)
            if text is None:
                return None
            texts.append(text)
        return b"[" + b",".join(texts) + b"]"

    def _object(self, schema: SchemaMap, depth: int) -> bytes | None:
        needed, known = schema.get("required", ()), schema.get("properties", {})
        texts = list[bytes]()
        for name in (*(name for name in known if name in needed), *(name for name in needed if name not in known)):
            text = self._first(known.get(name, schema.get("additionalProperties", True)), depth)
            if text is None:
                return None
            texts.append(b'"' + written_key(name) + b'":' + text)
        return b"{" + b",".join(texts) + b"}"

    def _first(self, schema: Schema, depth: int) -> bytes | None:
        return min(self._of(schema, depth + 1), key=len, default=None)


def _string(schema: SchemaMap) -> bytes | None:
    text = _FORMATS.get(schema["format"]) if "format" in schema else ""
    if "pattern" in schema:
        text = shortest_match(schema["pattern"])
    if text is None:
        return None
    return _written(text + "a" * (min(schema.get("minLength", 0), LONGEST) - len(text)))


def rest_of_number(schema: SchemaMap, text: bytes) -> bytes | None:
    """The digits that an integer which is begun still needs to come within its bounds, None where none will do."""
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + 1)
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - 1)
    digits = text.removeprefix(b"-")
    if digits != text:
        low, high = -high, -low
    least = math.ceil(low) if low > 0 else 0
    if not digits:
        return str(max(least, 1)).encode() if max(least, 1) <= high else None
    for more in range((1 if digits.startswith(b"0") else _MOST_DIGITS) if digits.isdigit() else 0):
        first = int(digits) * 10**more
        if max(first, least) <= min(first + 10**more - 1, high):
            return str(max(first, least)).encode()[len(digits) :]
    return None


def _number(schema: SchemaMap) -> bytes:
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    if low < 0 < high or (low == 0 and schema.get("exclusiveMinimum") != 0) or low == -math.inf == -high:
        return b"0"
    edge = low if low > 0 or high == math.inf else high
    if "exclusiveMinimum" in schema and edge == schema["exclusiveMinimum"]:
        edge = int(edge) + 1
    return _written(edge)


def known_texts(schema: SchemaMap) -> Iterator[bytes]:
    """The values that a schema names, or for a string with a pattern or format one that fits."""
    yield from map(_written, _known_values(schema))
    if not schema.keys().isdisjoint(("pattern", "format")) and (text := _string(schema)) is not None:
        yield text


def _known_values(schema: SchemaMap) -> Iterator[Any]:
    if "const" in schema:
        yield schema["const"]
    yield from schema.get("enum", ())


def _written(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
