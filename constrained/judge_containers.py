"""What the keywords of objects and arrays say of a container that isn't closed; `judge_rules.py` has the others.

True and False are final, None depends on what follows.
"""

from collections.abc import Callable

from branchpoint.constrained.partial import Frame, Node, Open
from branchpoint.constrained.schema import Schema, SchemaMap
from branchpoint.constrained.verdict import Rule, Verdict, Verdicts, all_of, may_become

__all__ = ["CONTAINER_RULES"]

_DEEPEST = 100


def _of_objects(_: Verdicts, __: SchemaMap, value: Open, ___: int) -> Verdict:
    return None if value.kind in ("object", None) else True


def _of_arrays(_: Verdicts, __: SchemaMap, value: Open, ___: int) -> Verdict:
    return None if value.kind in ("array", None) else True


def _for(kind: str, rule: Callable[[Verdicts, SchemaMap, Frame, Open | None, int], Verdict]) -> Rule:
    """A rule for open containers of one kind."""

    def checked(judge: Verdicts, schema: SchemaMap, value: Open, depth: int) -> Verdict:
        if value.kind is None:
            return None
        return rule(judge, schema, value.frame, value.child, depth) if value.kind == kind and value.frame else True

    return checked


def _required(_: Verdicts, schema: SchemaMap, frame: Frame, __: Open | None, ___: int) -> Verdict:
    names = frame.names
    return True if all(name in names or name == frame.key for name in schema["required"]) else None


def _properties(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, depth: int) -> Verdict:
    known: SchemaMap = schema["properties"]
    if not _fold(frame, schema, "declared", lambda key, node: judge.is_valid(known.get(str(key), True), node)):
        return False
    written: Verdict = True
    if frame.key in known and child is not None:
        written = judge.verdict(known[frame.key], child, depth)
    if written is False or frame.count + 1 < len(known):
        return None if written is not False else False
    names = frame.names
    return written if all(name in names or name == frame.key for name in known) else None


def _other_properties(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, depth: int) -> Verdict:
    """`patternProperties` and `additionalProperties`, together with `properties`, member by member."""
    if not _fold(frame, schema, "properties", lambda key, node: _fits(judge, schema, str(key), node)):
        return False
    if frame.key is not None and child is not None:
        return False if all_of(_applied(judge, schema, frame.key, child, depth)) is False else None
    return None


def _fits(judge: Verdicts, schema: SchemaMap, name: str, node: Node) -> bool:
    return all(judge.is_valid(each, node) for each in judge.property_schemas(schema, name))


def _applied(judge: Verdicts, schema: SchemaMap, name: str, child: Open, depth: int) -> list[Verdict]:
    return [judge.verdict(each, child, depth) for each in judge.property_schemas(schema, name)]


def _fold(frame: Frame, schema: SchemaMap, rule: str, fits: Callable[[str | None, Node], bool]) -> bool:
    """Whether every complete member fits, remembered cell by cell."""
    key = (id(schema), rule)
    waiting = []
    result = True
    for cell in frame.cell.chain() if frame.cell else ():
        if key in cell.folds:
            result = cell.folds[key]
            break
        waiting.append(cell)
    for cell in reversed(waiting):
        result = cell.folds[key] = result and fits(cell.key, cell.node)
    return result


def _property_names(judge: Verdicts, schema: SchemaMap, frame: Frame, _: Open | None, __: int) -> Verdict:
    names = schema["propertyNames"]
    if frame.key is not None and not judge.is_valid(names, Node(frame.key)):
        return False
    return None if _fold(frame, schema, "names", lambda key, _: judge.is_valid(names, Node(key))) else False


def _count(frame: Frame, child: Open | None) -> int:
    return frame.count + (child is not None)


def _least(keyword: str) -> Callable[[Verdicts, SchemaMap, Frame, Open | None, int], Verdict]:
    return lambda _, schema, frame, child, __: True if _count(frame, child) >= schema[keyword] else None


def _most(keyword: str) -> Callable[[Verdicts, SchemaMap, Frame, Open | None, int], Verdict]:
    return lambda _, schema, frame, child, __: False if _count(frame, child) > schema[keyword] else None


def _dependent_schemas(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, depth: int) -> Verdict:
    view = Open("object", frame, child)
    present = [name for name in schema["dependentSchemas"] if name in frame.names or name == frame.key]
    found = all_of(judge.verdict(schema["dependentSchemas"][name], view, depth) for name in present)
    return False if found is False else None


def _unevaluated(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, depth: int) -> Verdict:
    """A member that no part can come to evaluate must satisfy `unevaluatedProperties`."""
    rest = schema["unevaluatedProperties"]
    view = Open("object", frame, child)
    for name, node in frame.names.items():
        if not judge.is_valid(rest, node) and not _may_evaluate(judge, schema, name, view, depth):
            return False
    if frame.key is not None and child is not None and judge.verdict(rest, child, depth) is False:
        return None if _may_evaluate(judge, schema, frame.key, view, depth) else False
    return None


def _may_evaluate(judge: Verdicts, schema: Schema, name: str, view: Open, depth: int) -> bool:
    """Whether some part of `schema`, in place, may come to evaluate a property."""
    if isinstance(schema, bool) or depth > _DEEPEST:
        return False
    if "additionalProperties" in schema or judge.names_property(schema, name):
        return True
    parts: list[Schema] = list(schema.get("allOf", ()))
    parts += [each for word in ("anyOf", "oneOf") for each in schema.get(word, ())]
    parts += [schema[word] for word in ("if", "then", "else") if word in schema]
    parts += [each for key, each in schema.get("dependentSchemas", {}).items()]
    if "$ref" in schema:
        parts.append(judge.definitions[schema["$ref"]])
    possible = [part for part in parts if isinstance(part, dict) and judge.verdict(part, view, depth) is not False]
    return any("unevaluatedProperties" in part or _may_evaluate(judge, part, name, view, depth + 1) for part in possible)


def _items(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, depth: int) -> Verdict:
    first: list[Schema] = schema.get("prefixItems", [])
    rest: Schema = schema.get("items", True)
    for at, cell in enumerate(reversed(list(frame.cell.chain() if frame.cell else ()))):
        if not judge.is_valid(first[at] if at < len(first) else rest, cell.node):
            return False
    if child is not None:
        here = first[frame.count] if frame.count < len(first) else rest
        return False if judge.verdict(here, child, depth) is False else None
    return None


def _contains(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, depth: int) -> Verdict:
    wanted, least, most = schema["contains"], schema.get("minContains", 1), schema.get("maxContains")
    found = sum(judge.is_valid(wanted, cell.node) for cell in (frame.cell.chain() if frame.cell else ()))
    more = child is not None and most is not None and judge.verdict(wanted, child, depth) is True
    if most is not None and found + more > most:
        return False
    if found < least and "maxItems" in schema:
        wasted = child is not None and judge.verdict(wanted, child, depth) is False
        if found + schema["maxItems"] - frame.count - wasted < least:
            return False
    return True if found >= least and most is None else None


def _unique(judge: Verdicts, schema: SchemaMap, frame: Frame, child: Open | None, _: int) -> Verdict:
    if not schema["uniqueItems"] or frame.cell is None:
        return None if schema["uniqueItems"] else True
    if len(frame.cell.seen) < frame.count:
        return False
    first = schema.get("prefixItems", ())
    items = first[frame.count] if frame.count < len(first) else schema.get("items", True)
    if isinstance(items, dict) and len(items) == 1 and "$ref" in items:
        items = judge.definitions[items["$ref"]]
    if child is not None and child.kind is not None and isinstance(items, dict) and "enum" in items:
        seen = frame.cell.seen
        if not any(Node(each).canonical not in seen and may_become(child, each) for each in items["enum"]):
            return False
    return None


CONTAINER_RULES: dict[str, Rule] = {
    "required": _for("object", _required),
    "properties": _for("object", _properties),
    **dict.fromkeys(("patternProperties", "additionalProperties"), _for("object", _other_properties)),
    "propertyNames": _for("object", _property_names),
    "minProperties": _for("object", _least("minProperties")),
    "maxProperties": _for("object", _most("maxProperties")),
    "dependentSchemas": _for("object", _dependent_schemas),
    "unevaluatedProperties": _for("object", _unevaluated),
    "dependentRequired": _of_objects,
    **dict.fromkeys(("prefixItems", "items"), _for("array", _items)),
    "contains": _for("array", _contains),
    "uniqueItems": _for("array", _unique),
    "minItems": _for("array", _least("minItems")),
    "maxItems": _for("array", _most("maxItems")),
    "unevaluatedItems": _of_arrays,
}
"""By keyword."""
