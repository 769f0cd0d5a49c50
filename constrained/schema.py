"""A JSON schema as data: parsed within limits, and the subschemas that its local references name.

First step of a JSON-schema constraint; `normalise.py` reads on.
"""

import json
from typing import Any
from urllib.parse import unquote

from branchpoint.constrained.errors import InvalidSchema, LimitExceeded, shorten

__all__ = ["References", "Schema", "SchemaMap", "parse_schema", "split_pointer"]

SchemaMap = dict[str, Any]
Schema = SchemaMap | bool

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 100


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
