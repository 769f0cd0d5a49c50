"""Objects whose keys come in any order: declared properties become patterns of names, which the engine takes as they come.

A step of a JSON-schema constraint between `inhabited.py` and the engine; `relax.py` marks the objects. That keys stand once, and
required ones at all, is the judge's to see.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from branchpoint.constrained.patterns import exact_pattern
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.spec import Narrowing

__all__ = ["FREE", "Unordered", "is_free", "mark_free", "unordered_schema"]

FREE = ".any"
"""What the name of a definition ends with where its objects are free."""

_MARK = "$free"
_PLAIN = {"type", "properties", "required", "additionalProperties", "$defs"}
_MAX_NAMES = 400
_MAX_PAIRS = 2_000
_NOTE = "some properties come in declared order: those of objects that allOf and the like put together, or of very wide ones"


def is_free(schema: SchemaMap) -> bool:
    """Whether a relaxed schema is an object that nothing else says something about."""
    return bool(schema.get("properties")) and schema.keys() <= _PLAIN


def mark_free(schema: SchemaMap, number: int) -> None:
    """Let the keys of this object, known by a number, come in any order."""
    schema[_MARK] = number


@dataclass(frozen=True, slots=True)
class Unordered:
    """`schema` with the marked objects set free, and in `narrowed` what is narrower than was asked.

    `names` has, by number of the free ones, the only names that they may have, None where any may stand beside the declared.
    """

    schema: Schema
    narrowed: tuple[Narrowing, ...]
    names: Mapping[int, frozenset[str] | None]


def unordered_schema(root: Schema) -> Unordered:
    """Set free what is marked, as far as the engine affords it."""
    walk = _Walk()
    schema: Schema = walk.convert(root)
    return Unordered(schema, (Narrowing("", "properties", _NOTE),) if walk.ordered else (), walk.names)


class _Walk:
    """`pairs` counts the patterns that the engine has to hold against each other."""

    def __init__(self) -> None:
        self.pairs = 0
        self.names: dict[int, frozenset[str] | None] = {}
        self.ordered = False

    def convert(self, at: Any) -> Any:
        if isinstance(at, list):
            return [self.convert(each) for each in at]
        if not isinstance(at, dict):
            return at
        result = {key: self._below(key, value) for key, value in at.items() if key != _MARK}
        self.ordered = self.ordered or (_MARK not in at and len(result.get("properties", ())) > 1)
        return self._free(result, at[_MARK]) if _MARK in at else result

    def _below(self, keyword: str, value: Any) -> Any:
        if keyword in ("const", "enum"):
            return value
        if keyword in ("properties", "patternProperties", "$defs"):
            return {name: self.convert(each) for name, each in value.items()}
        return self.convert(value)

    def _free(self, schema: SchemaMap, number: int) -> SchemaMap:
        groups: dict[str, list[str]] = {}
        for name, each in schema["properties"].items():
            groups.setdefault(json.dumps(each, sort_keys=True), []).append(name)
        pairs = len(groups) * (len(groups) - 1) // 2
        if self.pairs + pairs > _MAX_PAIRS or len(schema["properties"]) > _MAX_NAMES:
            self.ordered = True
            return schema
        self.pairs += pairs
        possible = frozenset(name for name, each in schema["properties"].items() if each is not False)
        self.names[number] = possible if schema.get("additionalProperties", True) is False else None
        result = {key: value for key, value in schema.items() if key not in ("properties", "required")}
        result["patternProperties"] = {exact_pattern(names): schema["properties"][names[0]] for names in groups.values()}
        return result
