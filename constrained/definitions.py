"""The definitions of a normalised schema, and subschemas of it made whole: with those that they refer to.

Used by `rewriting.py` and `judge.py`, which hand subschemas to libraries.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Definitions"]

_PREFIX = "#/$defs/"


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
