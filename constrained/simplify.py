"""Takes out of a relaxed schema what says nothing: the engine merges what stands side by side, and can't where it recurs.

A step of a JSON-schema constraint after `relax.py`; the result accepts exactly the same.
"""

from typing import Any

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.patterns import exact_pattern
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["simplify_schema"]

_DEEPEST = 8
_MAX_TEXTS = 1_000
_ESCAPED = frozenset('"\\/')


def simplify_schema(root: Schema) -> Schema:
    """An equal schema with fewer siblings."""
    if isinstance(root, bool):
        return root
    simplified = _simplify(root)
    if not isinstance(simplified, dict):
        return bool(simplified)
    if _has_parts(simplified):
        simplified = _without_enums(simplified)
    untyped: SchemaMap = _untyped(simplified, Definitions(simplified.get("$defs", {})))
    return untyped


def _simplify(at: Any) -> Any:
    """Without empty parts of `allOf` and lists of one."""
    if isinstance(at, list):
        return [_simplify(each) for each in at]
    if not isinstance(at, dict):
        return at
    result: SchemaMap = {key: value if key in ("const", "enum") else _simplify(value) for key, value in at.items()}
    if isinstance(result.get("allOf"), list):
        parts = [each for each in _flat(result["allOf"]) if each is not True and each != {}]
        del result["allOf"]
        if len(parts) == 1 and isinstance(parts[0], dict) and result.keys() <= {"$defs", "type"} - parts[0].keys():
            result |= parts[0]  # beside other words it might change what they mean
        elif parts:
            result["allOf"] = parts
    return result


def _flat(parts: list[Schema]) -> list[Schema]:
    found: list[Schema] = []
    for part in parts:
        found += _flat(part["allOf"]) if isinstance(part, dict) and part.keys() == {"allOf"} else [part]
    return found


def _has_parts(at: Any) -> bool:
    """Whether some `allOf` is left, for whose parts the engine seeks what they have in common."""
    if isinstance(at, list):
        return any(map(_has_parts, at))
    return isinstance(at, dict) and (
        isinstance(at.get("allOf"), list) or any(_has_parts(value) for key, value in at.items() if key not in ("const", "enum"))
    )


def _without_enums(at: Any) -> Any:
    """With a pattern for each list of texts: the engine holds two patterns together at once, and lists each against each."""
    if isinstance(at, list):
        return [_without_enums(each) for each in at]
    if not isinstance(at, dict):
        return at
    result: SchemaMap = {key: value if key in ("const", "enum") else _without_enums(value) for key, value in at.items()}
    if isinstance(result.get("enum"), list) and result.keys() <= {"enum", "type"} and "string" in result.get("type", "string"):
        listed = result["enum"]
        if 1 < len(listed) <= _MAX_TEXTS and all(map(_is_plain, listed)):
            return {"type": "string", "pattern": exact_pattern(listed)}
    return result


def _is_plain(value: object) -> bool:
    """Whether a value is a text with one spelling only."""
    return isinstance(value, str) and value.isprintable() and not _ESCAPED & frozenset(value)


def _untyped(at: Any, definitions: Definitions) -> Any:
    """Without a `type` beside `anyOf` or `$ref` that every branch implies."""
    if isinstance(at, list):
        return [_untyped(each, definitions) for each in at]
    if not isinstance(at, dict):
        return at
    result = {key: value if key in ("const", "enum") else _untyped(value, definitions) for key, value in at.items()}
    if at.keys() in ({"type", "anyOf"}, {"type", "$ref"}):
        branches = at["anyOf"] if "anyOf" in at else [{"$ref": at["$ref"]}]
        allowed = _types(at, definitions, 0)
        if allowed is not None and all(_within(each, allowed, definitions) for each in branches):
            del result["type"]
    return result


def _within(schema: Schema, allowed: frozenset[str], definitions: Definitions) -> bool:
    found = _types(schema, definitions, 0)
    return found is not None and found <= allowed


def _types(schema: Schema, definitions: Definitions, depth: int) -> frozenset[str] | None:
    """The types that a schema allows by its own word, None where it doesn't say."""
    if isinstance(schema, bool):
        return None if schema else frozenset()
    if "type" in schema:
        return frozenset([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
    if "$ref" in schema and depth < _DEEPEST:
        return _types(definitions[schema["$ref"]], definitions, depth + 1)
    if "anyOf" in schema and depth < _DEEPEST:
        found = [_types(each, definitions, depth + 1) for each in schema["anyOf"]]
        return None if None in found else frozenset().union(*(each for each in found if each is not None))
    return None
