"""What each keyword says of a value that isn't complete: True and False are final, None depends on what follows.

Used by `judge.py` only, for open values; a rule that doesn't concern the value's type is satisfied.
"""

import math

from branchpoint.constrained.judge_containers import CONTAINER_RULES
from branchpoint.constrained.partial import Open
from branchpoint.constrained.schema import SchemaMap
from branchpoint.constrained.verdict import Rule, Verdict, Verdicts, all_of, may_become

__all__ = ["RULES", "rules_for"]


def _not(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict


def _type(_: Verdicts, schema: SchemaMap, value: Open, __: int) -> Verdict:
    if value.kind is None:
        return None
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if value.kind in names:
        return True
    return None if value.kind == "number" and "integer" in names else False


def _values(_: Verdicts, schema: SchemaMap, value: Open, __: int) -> Verdict:
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    return None if value.kind is None or any(may_become(value, each) for each in listed) else False


def _integer_bounds(_: Verdicts, schema: SchemaMap, value: Open, __: int) -> Verdict:
    """Digits make an integer larger and larger; a bound that it has passed is passed for good."""
    text = value.text.decode(errors="replace")
    if value.kind != "number" or schema.get("type") != "integer" or not f"{text}0".lstrip("-").isdigit():
        return True if value.kind not in ("number", None) else None
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + 1)
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - 1)
    if text.startswith("-"):
        low, high = -high, -low
    if text == "-":
        return None if high >= 0 else False
    least = most = int(text.lstrip("-"))
    if most == 0:  # no digit may follow
        return None if low <= 0 <= high else False
    while least <= high:
        if most >= low:
            return None
        least, most = least * 10, most * 10 + 9
    return False


def _max_length(_: Verdicts, schema: SchemaMap, value: Open, __: int) -> Verdict:
    if value.kind == "string":
        return False if len(value.decoded) > schema["maxLength"] else None
    return None if value.kind is None else True


def _of_strings(_: Verdicts, __: SchemaMap, value: Open, ___: int) -> Verdict:
    return None if value.kind in ("string", None) else True


def _of_numbers(_: Verdicts, __: SchemaMap, value: Open, ___: int) -> Verdict:
    return None if value.kind in ("number", None) else True


def _any_of(judge: Verdicts, schema: SchemaMap, value: Open, depth: int) -> Verdict:
    result: Verdict = False
    for each in schema["anyOf"]:
        found = judge.verdict(each, value, depth)
        if found is True:
            return True
        result = None if found is None else result
    return result


def _one_of(judge: Verdicts, schema: SchemaMap, value: Open, depth: int) -> Verdict:
    found = [judge.verdict(each, value, depth) for each in schema["oneOf"]]
    if found.count(True) > 1:
        return False
    return None if None in found else found.count(True) == 1


def _if(judge: Verdicts, schema: SchemaMap, value: Open, depth: int) -> Verdict:
    condition = judge.verdict(schema["if"], value, depth)
    then = judge.verdict(schema.get("then", True), value, depth)
    otherwise = judge.verdict(schema.get("else", True), value, depth)
    if condition is None:
        return then if then == otherwise else None
    return then if condition else otherwise


def rules_for(schema: SchemaMap, kind: str | None) -> tuple[Rule, ...]:
    """The rules that may say something of a value of this type (None: of any)."""
    return tuple(RULES[word] for word in schema if word in RULES and (kind is None or _KIND_OF.get(word, kind) == kind))


RULES: dict[str, Rule] = {
    **CONTAINER_RULES,
    "type": _type,
    "const": _values,
    "enum": _values,
    "minimum": _integer_bounds,
    "maximum": _integer_bounds,
    "exclusiveMinimum": _integer_bounds,
    "exclusiveMaximum": _integer_bounds,
    "multipleOf": _of_numbers,
    "maxLength": _max_length,
    **dict.fromkeys(("minLength", "pattern", "format"), _of_strings),
    "$ref": lambda judge, schema, value, depth: judge.verdict(judge.definitions[schema["$ref"]], value, depth),
    "allOf": lambda judge, schema, value, depth: all_of(judge.verdict(each, value, depth) for each in schema["allOf"]),
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": lambda judge, schema, value, depth: _not(judge.verdict(schema["not"], value, depth)),
    "if": _if,
}
"""By keyword; those that aren't here say nothing by themselves."""

_STRING = "minLength maxLength pattern format"
_NUMBER = "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"
_ARRAY = "prefixItems items contains uniqueItems minItems maxItems unevaluatedItems"
_OBJECT = (
    "required properties patternProperties additionalProperties propertyNames minProperties maxProperties dependentSchemas "
    "dependentRequired unevaluatedProperties"
)
_KIND_OF = {
    **dict.fromkeys(_STRING.split(), "string"),
    **dict.fromkeys(_NUMBER.split(), "number"),
    **dict.fromkeys(_ARRAY.split(), "array"),
    **dict.fromkeys(_OBJECT.split(), "object"),
}
