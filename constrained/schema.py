"""From a caller's JSON schema to one whose every keyword the grammar engine honours; anything else is refused by name.

First step of a JSON-schema constraint: parse within limits, drop annotations, keep only the definitions that are used.
`inhabited.py` then cuts what nothing can satisfy; the compiler hands the rest to llguidance with every leniency switched off.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from branchpoint.constrained.errors import InvalidSchema, LimitExceeded, UnsupportedKeyword, shorten
from branchpoint.constrained.keywords import FORMATS, KEYWORDS, NEUTRAL, REFUSED, misspelt

__all__ = ["References", "Schema", "SchemaMap", "normalise_schema", "parse_schema", "split_pointer"]

SchemaMap = dict[str, Any]
Schema = SchemaMap | bool

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 100
_MAX_EXACT = 1 << 53
_DEFINITIONS = ("$defs", "definitions")


def parse_schema(text: str) -> Schema:
    """The JSON of a schema, an object or a boolean. Raises InvalidSchema or LimitExceeded."""
    if len(text) > _MAX_BYTES:
        raise LimitExceeded(f"A schema may have {_MAX_BYTES:,} characters, got {len(text):,}.")
    if (depth := _depth(text)) > _MAX_DEPTH:
        raise LimitExceeded(f"A schema may nest {_MAX_DEPTH} levels of JSON, got {depth:,}.")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise InvalidSchema(f"Expected a JSON schema as JSON text, got {shorten(repr(text[:60]))}: {shorten(error)}") from error
    if not isinstance(value, dict | bool):
        raise InvalidSchema(f"Expected a JSON schema, an object or a boolean, got {shorten(text[:60])}.")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _depth(text: str) -> int:
    """How deep brackets nest outside of strings."""
    deepest = depth = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                quoted = False
        elif char == '"':
            quoted = True
        elif char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def normalise_schema(schema: Schema) -> Schema:
    """The schema with what counts only, in the same order. Raises UnsupportedKeyword (keyword, pointer) or InvalidSchema."""
    return _Normaliser(schema).run()


def split_pointer(reference: str) -> list[str]:
    """The decoded steps of a local reference such as `#/$defs/a~1b`."""
    steps = unquote(reference.removeprefix("#")).split("/")[1:]
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]


class References:
    """Finds what local references of one schema document name."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._anchors: dict[str, Schema] = {}
        self._collect(root)

    def _collect(self, at: object) -> None:
        if isinstance(at, dict):
            if isinstance(at.get("$anchor"), str):
                self._anchors.setdefault(at["$anchor"], at)
            for nested in at.values():
                self._collect(nested)
        elif isinstance(at, list):
            for nested in at:
                self._collect(nested)

    def find(self, reference: str) -> Schema | None:
        """The subschema that `#`, `#/…` or `#anchor` names, None where there is none."""
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return self._anchors.get(reference[1:])
        return self.at(split_pointer(reference))

    def at(self, steps: list[str]) -> Schema | None:
        """The subschema at the end of these (decoded) steps from the root, None where there is none."""
        at: Any = self._root
        for step in steps:
            if isinstance(at, dict) and step in at:
                at = at[step]
            elif isinstance(at, list) and step.isdecimal() and int(step) < len(at):
                at = at[int(step)]
            else:
                return None
        return at if isinstance(at, dict | bool) else None


class _Normaliser:
    """Walks what is reachable from the root; definitions are walked when a reference first names them."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._references = References(root)
        self._all_pending = False
        self._pending: list[tuple[str, str, list[str]]] = []
        self._hoisted: dict[str, str] = {}
        self._kept: dict[str, dict[str, Schema]] = {}

    def run(self) -> Schema:
        result = self._schema(self._root, "")
        while self._pending:
            group, name, steps = self._pending.pop()
            if name not in self._kept.setdefault(group, {}):
                self._kept[group][name] = True  # claimed, so that cycles end
                self._kept[group][name] = self._schema(self._references.at(steps), "".join(f"/{_escape(step)}" for step in steps))
        if isinstance(result, dict):
            result.update(self._kept)
        return result

    def _schema(self, schema: object, pointer: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidSchema(
                f"Expected a schema at {pointer or '/'}, an object or a boolean, got {shorten(repr(schema)[:60])}."
            )
        _check_counts(schema, pointer)
        result: SchemaMap = {}
        for keyword, value in schema.items():
            for kept, normal in self._keyword(keyword, value, pointer):
                result[kept] = normal
        return result

    def _keyword(self, keyword: str, value: Any, pointer: str) -> list[tuple[str, Any]]:
        """What stands for one keyword: itself with a normal value, or nothing."""
        kind = KEYWORDS.get(keyword)
        here = f"{pointer}/{_escape(keyword)}"
        if kind == "annotation" or keyword.startswith("x-") or _is_neutral(keyword, value):
            return []
        if kind is None:
            meant = misspelt(keyword)
            if keyword not in REFUSED and meant is None:
                return []  # a word of nobody's draft says nothing about what is valid
            why = f"it would be ignored; did you mean {meant!r}?" if meant else "masks can't hold it yet; express it otherwise."
            raise UnsupportedKeyword(keyword, here, why)
        if kind == "plain":
            return self._plain(keyword, value, here)
        if kind == "base":
            return self._base(keyword, value, pointer)
        if kind == "definitions" and not pointer:
            if not isinstance(value, dict):
                raise InvalidSchema(f"Expected a map of schemas at {here}, got {shorten(repr(value)[:60])}.")
            return []
        if kind in ("map", "definitions"):
            return [(keyword, self._map(value, here))]
        if kind == "schemas" or (kind == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                raise InvalidSchema(f"Expected a list of schemas at {here}, got {shorten(repr(value)[:60])}.")
            return [(keyword, [self._schema(each, f"{here}/{at}") for at, each in enumerate(value)])]
        return [(keyword, self._schema(value, here))]

    def _base(self, keyword: str, value: object, pointer: str) -> list[tuple[str, Any]]:
        """`$schema` decides how the whole is read. `$id` names a document; below the root it would move references."""
        here = f"{pointer}/{keyword}"
        if keyword == "id" and not isinstance(value, str):
            return []  # a word like any other since draft 6
        if not isinstance(value, str):
            raise InvalidSchema(f"Expected a string at {here}, got {shorten(repr(value)[:60])}.")
        if keyword == "$schema":
            root = self._root["$schema"] if isinstance(self._root, dict) and "$schema" in self._root else value
            if value != root:
                raise UnsupportedKeyword(keyword, here, "a part can't be of another draft than the whole.")
            return [] if pointer else [(keyword, value)]
        steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
        if pointer and _mentions_reference(self._references.at(steps)):
            raise UnsupportedKeyword(keyword, here, "below the root it would move the references beneath it.")
        return []

    def _map(self, value: object, here: str) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise InvalidSchema(f"Expected a map of schemas at {here}, got {shorten(repr(value)[:60])}.")
        return {name: self._schema(each, f"{here}/{_escape(name)}") for name, each in value.items()}

    def _plain(self, keyword: str, value: Any, here: str) -> list[tuple[str, Any]]:
        if keyword == "$ref":
            value = self._follow(value, here)
        if keyword == "format" and value not in FORMATS:
            if not isinstance(value, str):
                raise InvalidSchema(f"Expected a string at {here}, got {shorten(repr(value)[:60])}.")
            return []
        if (large := _inexact(value)) is not None:
            raise UnsupportedKeyword(keyword, here, f"numbers beyond 2^53 are not exact here, got {shorten(str(large)[:40])}.")
        return [(keyword, value)]

    def _follow(self, reference: object, here: str) -> str:
        """Have what a reference names walked too; returns the reference to it in the result."""
        if not isinstance(reference, str):
            raise InvalidSchema(f"Expected a reference at {here}, a string, got {shorten(repr(reference)[:60])}.")
        if not reference.startswith("#"):
            raise UnsupportedKeyword("$ref", here, f"only references within the schema are followed, got {shorten(reference)}.")
        if self._references.find(reference) is None:
            raise InvalidSchema(f"The reference {shorten(reference)!r} at {here} names nothing in the schema.")
        if not reference.startswith("#/"):
            if reference != "#" and not self._all_pending and isinstance(self._root, dict):
                self._all_pending = True  # an anchor: it may lie in any definition
                self._pending += [(group, name, [group, name]) for group in _DEFINITIONS for name in self._root.get(group, ())]
            return reference
        steps = split_pointer(reference)
        if steps[0] in _DEFINITIONS and len(steps) > 1:
            self._pending.append((steps[0], steps[1], steps[:2]))
        if _stays(steps):
            return reference
        if reference not in self._hoisted:
            self._hoisted[reference] = f"hoisted schema {len(self._hoisted)}"
            self._pending.append(("$defs", self._hoisted[reference], steps))
        return f"#/$defs/{quote(self._hoisted[reference])}"


def _stays(steps: list[str]) -> bool:
    """Whether a pointer leads through schemas only, so that what it names has its place in the result."""
    at = 0
    while at < len(steps):
        kind = KEYWORDS.get(steps[at])
        if kind not in ("schema", "schemas", "items", "map", "definitions"):
            return False
        numbered = kind == "schemas" or (kind == "items" and at + 1 < len(steps) and steps[at + 1].isdecimal())
        at += 2 if numbered or kind in ("map", "definitions") else 1
    return True


def _mentions_reference(at: object) -> bool:
    if isinstance(at, dict):
        return "$ref" in at or any(map(_mentions_reference, at.values()))
    return isinstance(at, list) and any(map(_mentions_reference, at))


def _is_neutral(keyword: str, value: object) -> bool:
    return any(type(value) is type(said) and value == said for said in NEUTRAL.get(keyword, ()))


def _check_counts(schema: Mapping[str, Any], pointer: str) -> None:
    """`minProperties` is counted by the engine, but a repeated key would count twice: only what needs no second key."""
    least = schema.get("minProperties", 0)
    required = schema.get("required")
    named = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, named):
        raise UnsupportedKeyword("minProperties", f"{pointer}/minProperties", "more than 1, and more than the required ones.")


def _inexact(value: object) -> object | None:
    """A number somewhere in `value` that a 64-bit float doesn't hold exactly as an integer, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value if not -_MAX_EXACT <= value <= _MAX_EXACT else None
    nested = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in nested if (found := _inexact(each)) is not None), None)


def _escape(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")
