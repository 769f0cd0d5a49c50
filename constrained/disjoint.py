"""Proves that the branches of a `oneOf` exclude one another, so that it may be followed as an `anyOf`.

A step of a JSON-schema constraint between `schema.py` and the engine, which only proves it for the plainest branches.
"""

import itertools
import json
from typing import Any

from branchpoint.constrained.schema import References, Schema, SchemaMap

__all__ = ["rewrite_one_of"]

_DEEPEST = 8
_MOST_BRANCHES = 200
_TYPE_NAMES = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"
}  # fmt: skip


def rewrite_one_of(root: Schema) -> Schema:
    """The schema with `anyOf` for every `oneOf` whose branches can't hold together; others stay, for the engine to judge."""
    rewritten: Schema = _rewrite(root, References(root))
    return rewritten


def _rewrite(at: Any, references: References) -> Any:
    if isinstance(at, list):
        return [_rewrite(each, references) for each in at]
    if not isinstance(at, dict):
        return at
    result = {key: value if key in ("const", "enum") else _rewrite(value, references) for key, value in at.items()}
    branches = at.get("oneOf")
    if (
        isinstance(branches, list)
        and len(branches) <= _MOST_BRANCHES
        and "anyOf" not in at
        and _all_disjoint(branches, references)
    ):
        return {("anyOf" if key == "oneOf" else key): value for key, value in result.items()}
    return result


def _all_disjoint(branches: list[Schema], references: References) -> bool:
    return all(_disjoint(one, other, references, 0) for one, other in itertools.combinations(branches, 2))


def _disjoint(one: Schema, other: Schema, references: References, depth: int) -> bool:
    """Whether no value satisfies both, as far as types, fixed values and required properties tell."""
    if one is False or other is False:
        return True
    first, second = _resolve(one, references), _resolve(other, references)
    if first is None or second is None or depth > _DEEPEST:
        return False
    values, others = _values(first), _values(second)
    if values is not None and others is not None:
        return not values & others
    if not _types(first) & _types(second):
        return True
    if _types(first) & _types(second) != {"object"}:
        return False
    return any(
        _disjoint(first["properties"][name], second["properties"][name], references, depth + 1)
        for name in _required(first) & _required(second)
    )


def _resolve(schema: Schema, references: References) -> SchemaMap | None:
    """The schema that bare references lead to, None where it can't be told."""
    seen = 0
    at: Schema | None = schema
    while isinstance(at, dict) and "$ref" in at and seen < _DEEPEST:
        at = references.find(at["$ref"])
        seen += 1
    return at if isinstance(at, dict) and "$ref" not in at else None


def _values(schema: SchemaMap) -> set[str] | None:
    """The only values that it may have, as JSON text; numbers that are equal are spelled equally."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return {json.dumps(_plain(value), sort_keys=True) for value in listed} if isinstance(listed, list) else None


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def _types(schema: SchemaMap) -> set[str]:
    """The JSON types that its values can have."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return {_TYPE_NAMES[type(value)] for value in listed}
    declared = schema.get("type", list(_TYPE_NAMES.values()))
    names = {declared} if isinstance(declared, str) else {str(name) for name in declared}
    return {"number" if name == "integer" else name for name in names}


def _required(schema: SchemaMap) -> set[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return set()
    return {name for name in required if isinstance(name, str) and name in properties}
