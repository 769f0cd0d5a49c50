"""What each keyword says of a value that isn't complete: True and False are final, None depends on what follows.

Used by `judge.py` only, for open values; a rule that doesn't concern the value's type is satisfied.
"""

from branchpoint.constrained.judge_containers import CONTAINER_RULES
from branchpoint.constrained.partial import Open
from branchpoint.constrained.schema import SchemaMap
from branchpoint.constrained.verdict import Rule, Verdict, Verdicts, all_of, any_of, chosen, contrary, may_become, one_of

__all__ = ["RULES", "rules_for"]


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


def _max_length(_: Verdicts, schema: SchemaMap, value: Open, __: int) -> Verdict:
    if value.kind == "string":
        return False if len(value.decoded) > schema["maxLength"] else None
    return None if value.kind is None else True


def _of_strings(_: Verdicts, __: SchemaMap, value: Open, ___: int) -> Verdict:
    return None if value.kind in ("string", None) else True


def _of_numbers(_: Verdicts, __: SchemaMap, value: Open, ___: int) -> Verdict:
    return None if value.kind in ("number", None) else True


def _one_of(judge: Verdicts, schema: SchemaMap, value: Open, depth: int) -> Verdict:
    return one_of([judge.verdict(each, value, depth) for each in schema["oneOf"]])


def _if(judge: Verdicts, schema: SchemaMap, value: Open, depth: int) -> Verdict:
    return chosen(*(judge.verdict(schema.get(word, True), value, depth) for word in ("if", "then", "else")))


def rules_for(schema: SchemaMap, kind: str | None) -> tuple[Rule, ...]:
    """The rules that may say something of a value of this type (None: of any)."""
    return tuple(RULES[word] for word in schema if word in RULES and (kind is None or _KIND_OF.get(word, kind) == kind))


_STRING = "minLength maxLength pattern format"
_NUMBER = "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"
_ARRAY = "prefixItems items contains uniqueItems minItems maxItems unevaluatedItems"
_OBJECT = (
    "required properties patternProperties additionalProperties propertyNames minProperties maxProperties dependentSchemas "
    "dependentRequired unevaluatedProperties"
)

RULES: dict[str, Rule] = {
    **CONTAINER_RULES,
    "type": _type,
    "const": _values,
    "enum": _values,
    **dict.fromkeys(_NUMBER.split(), _of_numbers),
    "maxLength": _max_length,
    **dict.fromkeys(("minLength", "pattern", "format"), _of_strings),
    "$ref": lambda judge, schema, value, depth: judge.verdict(judge.definitions[schema["$ref"]], value, depth),
    "allOf": lambda judge, schema, value, depth: all_of(judge.verdict(each, value, depth) for each in schema["allOf"]),
    "anyOf": lambda judge, schema, value, depth: any_of(judge.verdict(each, value, depth) for each in schema["anyOf"]),
    "oneOf": _one_of,
    "not": lambda judge, schema, value, depth: contrary(judge.verdict(schema["not"], value, depth)),
    "if": _if,
}
"""By keyword; those that aren't here say nothing by themselves."""

_KIND_OF = {
    **dict.fromkeys(_STRING.split(), "string"),
    **dict.fromkeys(_NUMBER.split(), "number"),
    **dict.fromkeys(_ARRAY.split(), "array"),
    **dict.fromkeys(_OBJECT.split(), "object"),
}
