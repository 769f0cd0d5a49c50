"""From a caller's JSON schema to one whose every keyword the grammar engine honours; anything else is refused by name.

First step of a JSON-schema constraint: parse within limits, drop annotations, keep only the definitions that are used.
`inhabited.py` then cuts what nothing can satisfy; the compiler hands the rest to llguidance with every leniency switched off.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from branchpoint.constrained.errors import InvalidSchema, LimitExceeded, UnsupportedKeyword, shorten
from branchpoint.constrained.keywords import FORMATS, KEYWORDS, NEUTRAL

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
        at: Any = self._root
        for step in split_pointer(reference):
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
        self._pending: list[tuple[str, str]] = []
        self._kept: dict[str, dict[str, Schema]] = {}

    def run(self) -> Schema:
        result = self._schema(self._root, "")
        while self._pending:
            group, name = self._pending.pop()
            if name not in self._kept.setdefault(group, {}):
                self._kept[group][name] = True  # claimed, so that cycles end
                body = self._root[group][name] if isinstance(self._root, dict) else True
                self._kept[group][name] = self._schema(body, f"/{group}/{_escape(name)}")
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
            raise UnsupportedKeyword(keyword, here, "it would be ignored; leave it out or express it otherwise.")
        if kind == "plain":
            return self._plain(keyword, value, here)
        if kind == "base":
            return _base(keyword, value, pointer)
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

    def _map(self, value: object, here: str) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise InvalidSchema(f"Expected a map of schemas at {here}, got {shorten(repr(value)[:60])}.")
        return {name: self._schema(each, f"{here}/{_escape(name)}") for name, each in value.items()}

    def _plain(self, keyword: str, value: Any, here: str) -> list[tuple[str, Any]]:
        if keyword == "$ref":
            self._follow(value, here)
        if keyword == "format" and value not in FORMATS:
            if not isinstance(value, str):
                raise InvalidSchema(f"Expected a string at {here}, got {shorten(repr(value)[:60])}.")
            return []
        if (large := _inexact(value)) is not None:
            raise UnsupportedKeyword(keyword, here, f"numbers beyond 2^53 are not exact here, got {shorten(str(large)[:40])}.")
        return [(keyword, value)]

    def _follow(self, reference: object, here: str) -> None:
        if not isinstance(reference, str):
            raise InvalidSchema(f"Expected a reference at {here}, a string, got {shorten(repr(reference)[:60])}.")
        if not reference.startswith("#"):
            raise UnsupportedKeyword("$ref", here, f"only references within the schema are followed, got {shorten(reference)}.")
        if self._references.find(reference) is None:
            raise InvalidSchema(f"The reference {shorten(reference)!r} at {here} names nothing in the schema.")
        steps = split_pointer(reference) if reference.startswith("#/") else []
        if steps and steps[0] in _DEFINITIONS and len(steps) > 1:
            self._pending.append((steps[0], steps[1]))
        elif reference != "#" and not steps and isinstance(self._root, dict) and not self._all_pending:
            self._all_pending = True  # an anchor: it may lie in any definition
            groups = ((group, self._root.get(group)) for group in _DEFINITIONS)
            self._pending += [(group, name) for group, names in groups if isinstance(names, dict) for name in names]
        elif steps and KEYWORDS.get(steps[0]) in (None, "annotation"):
            raise UnsupportedKeyword("$ref", here, f"it points outside of any schema, to {shorten(reference)}; use $defs.")


def _is_neutral(keyword: str, value: object) -> bool:
    return any(type(value) is type(said) and value == said for said in NEUTRAL.get(keyword, ()))


def _base(keyword: str, value: object, pointer: str) -> list[tuple[str, Any]]:
    """`$schema` decides how the rest is read; `$id` at the root names the document, deeper it would move references."""
    if not isinstance(value, str):
        raise InvalidSchema(f"Expected a string at {pointer}/{keyword}, got {shorten(repr(value)[:60])}.")
    if pointer:
        raise UnsupportedKeyword(keyword, f"{pointer}/{keyword}", "it is read at the root only.")
    return [(keyword, value)] if keyword == "$schema" else []


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
