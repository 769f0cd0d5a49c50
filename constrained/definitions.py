"""The definitions of a normalised schema, and subschemas of it made whole: with those that they refer to.

Used by `rewriting.py` and `judge.py`, which hand subschemas to libraries.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Definitions", "mentions_reference", "names_in_order"]

_PREFIX = "#/$defs/"
_DEEPEST = 6


class Definitions:
    """Read-only, but for what it remembers of its own contents."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._all = definitions
        self._direct: dict[str, frozenset[str]] = {}

    def __getitem__(self, reference: str) -> Schema:
        """What a reference, `#/$defs/N`, names."""
        return self._all.get(reference.removeprefix(_PREFIX), True)

    def name(self, reference: str) -> str:
        """The name of a definition."""
        return reference.removeprefix(_PREFIX)

    def whole(self, schema: SchemaMap) -> SchemaMap:
        """A subschema with every definition that it needs."""
        needed = self._reachable(schema)
        return {**schema, "$defs": {name: self._all.get(name, True) for name in needed}} if needed else schema

    def _reachable(self, schema: Schema) -> dict[str, None]:
        found: dict[str, None] = {}
        waiting = list(_names(schema))
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = None
                if name not in self._direct:
                    self._direct[name] = frozenset(_names(self._all.get(name, True)))
                waiting += self._direct[name]
        return found


def mentions_reference(schema: Schema) -> bool:
    """Whether a subschema refers to a definition anywhere."""
    return next(_names(schema), None) is not None


def names_in_order(schema: Schema, definitions: Definitions, depth: int = 0) -> dict[str, None]:
    """The properties that a schema and its parts in place name, in the order in which they are written."""
    found: dict[str, None] = {}
    if isinstance(schema, bool) or depth > _DEEPEST:
        return found
    found |= dict.fromkeys(schema.get("properties", {}))
    for name, needed in schema.get("dependentRequired", {}).items():
        found |= dict.fromkeys([*needed, name])
    parts: list[Schema] = [definitions[schema["$ref"]]] if "$ref" in schema else []
    parts += [each for word in ("allOf", "anyOf", "oneOf") for each in schema.get(word, ())]
    parts += [schema[word] for word in ("if", "then", "else") if word in schema]
    for part in parts:
        found |= names_in_order(part, definitions, depth + 1)
    return found | dict.fromkeys(schema.get("required", ()))


def _names(at: Any) -> Iterator[str]:
    """Definitions that a schema refers to directly."""
    if isinstance(at, dict):
        reference = at.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_PREFIX)
        for key, value in at.items():
            if key not in ("const", "enum", "$defs"):
                yield from _names(value)
    elif isinstance(at, list):
        for value in at:
            yield from _names(value)
