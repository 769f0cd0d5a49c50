"""Makes a schema stricter where a keyword in it can't be held: what the keyword stands in is left out, as far up as that is safe.

Asked by `json_grammar.py` where the caller allows it (`strictness="stricter"`).
"""

from typing import Any

from branchpoint.constrained.schema import Schema, split_pointer

__all__ = ["leave_out"]

_SCHEMAS = frozenset(
    (
        "items",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "then",
        "else",
    )
)
_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "allOf", "prefixItems", "items"))
_TURNING = frozenset(("not", "if", "oneOf", "maxContains"))
"""A subschema under these that becomes stricter may make the whole looser."""
_NAMING = frozenset(("$id", "id"))
_REFERRING = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))


def leave_out(schema: Schema, pointer: str) -> tuple[Schema, str] | None:
    """The schema with `false` in place of the smallest subschema around `pointer` that makes it stricter, and its own pointer.

    None where that is the schema itself, or where something may refer to it that turns what it says around.
    """
    steps = split_pointer("#" + pointer)
    length = _safe_length(schema, steps)
    narrower = _without(schema, steps[:length])
    turned = _has(narrower, _TURNING) or (_has(narrower, _NAMING) and _refers_abroad(narrower))
    if not length or (turned and _has(narrower, _REFERRING)):
        return None
    return narrower, "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps[:length])


def _safe_length(schema: Schema, steps: list[str]) -> int:
    """How many steps lead to the innermost subschema that always makes the whole stricter; 0 where that is the whole."""
    at: Any = schema
    taken = 0
    while isinstance(at, dict) and taken < len(steps):
        keyword = steps[taken]
        below = at.get(keyword)
        if keyword == "contains" and "maxContains" in at:
            break
        if keyword in _SCHEMAS and isinstance(below, dict):
            at, taken = below, taken + 1
        elif keyword in _MAPS and isinstance(below, dict) and isinstance(below.get(_at(steps, taken)), dict):
            at, taken = below[steps[taken + 1]], taken + 2
        elif keyword in _LISTS and isinstance(below, list) and _at(steps, taken).isdecimal():
            at, taken = below[int(steps[taken + 1])], taken + 2
        else:
            break
    return taken


def _at(steps: list[str], taken: int) -> str:
    return steps[taken + 1] if taken + 1 < len(steps) else ""


def _has(at: object, words: frozenset[str]) -> bool:
    """Whether one of some words is a key anywhere in a document."""
    if isinstance(at, dict):
        return bool(words & at.keys()) or any(_has(each, words) for each in at.values())
    return isinstance(at, list) and any(_has(each, words) for each in at)


def _refers_abroad(at: object) -> bool:
    if isinstance(at, dict):
        target = at.get("$ref", "#")
        return not str(target).startswith("#") or any(map(_refers_abroad, at.values()))
    return isinstance(at, list) and any(map(_refers_abroad, at))


def _without(at: Any, steps: list[str]) -> Any:
    if not steps:
        return False
    if isinstance(at, list):
        number = int(steps[0])
        return [*at[:number], _without(at[number], steps[1:]), *at[number + 1 :]]
    return {**at, steps[0]: _without(at[steps[0]], steps[1:])}
