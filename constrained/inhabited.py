"""Cuts from a normalised schema what no finite value satisfies: reference cycles, recursion without an end.

Second step of a JSON-schema constraint. Without it an engine would walk into a part of the grammar that it can't leave.
A part is kept where some value may exist; contradictions between number or string bounds are left to the engine.
"""

from collections.abc import Iterable
from typing import Any

from branchpoint.constrained.errors import EmptyLanguage, LimitExceeded
from branchpoint.constrained.schema import References, Schema, SchemaMap

__all__ = ["prune_uninhabited"]

_MAX_VISITS = 1_000_000
_TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")


def prune_uninhabited(root: Schema) -> Schema:
    """The schema with every subschema that nothing satisfies replaced by `false`. Raises EmptyLanguage for the whole."""
    analysis = _Analysis(root)
    if not analysis.inhabited(root):
        raise EmptyLanguage(
            "Nothing satisfies this schema: it is false, or it refers to itself in a way that never comes to an end "
            "(make one of the required properties optional, or give an alternative that doesn't recurse)."
        )
    return analysis.prune(root)


class _Analysis:
    """Which reference targets some finite value satisfies: a least fixed point, found by growing the set."""

    def __init__(self, root: Schema) -> None:
        references = References(root)
        targets = {reference: references.find(reference) for reference in _references(root)}
        self._visits = 0
        self._alive: set[str] = set()
        self._known: dict[int, bool] | None = None
        before = -1
        while before != len(self._alive):
            before = len(self._alive)
            for name, body in targets.items():
                if name not in self._alive and body is not None and self.inhabited(body):
                    self._alive.add(name)
        self._known = {}  # from here on nothing changes any more, and answers are kept

    def inhabited(self, schema: Schema) -> bool:
        """Whether some finite value satisfies `schema`, as far as references, types and required parts tell."""
        if self._known is None or isinstance(schema, bool):
            return self._judge(schema)
        if id(schema) not in self._known:
            self._known[id(schema)] = self._judge(schema)
        return self._known[id(schema)]

    def _judge(self, schema: Schema) -> bool:
        self._visits += 1
        if self._visits > _MAX_VISITS:
            raise LimitExceeded(f"The schema's references are too tangled: more than {_MAX_VISITS:,} visits to resolve them.")
        if isinstance(schema, bool):
            return schema
        if "$ref" in schema and schema["$ref"] not in self._alive:
            return False
        if not all(any(self.inhabited(each) for each in schema[key]) for key in ("anyOf", "oneOf") if key in schema):
            return False
        if not all(self.inhabited(each) for each in schema.get("allOf", ())):
            return False
        return "const" in schema or "enum" in schema or bool(self._types(schema))

    def _types(self, schema: SchemaMap) -> list[str]:
        """The types of which a finite value exists; one that isn't known is kept, for the engine to refuse."""
        declared = schema.get("type", list(_TYPES))
        names = [declared] if isinstance(declared, str) else declared
        return [name for name in names if self._type_inhabited(name, schema)] if isinstance(names, list) else [str(names)]

    def _type_inhabited(self, name: object, schema: SchemaMap) -> bool:
        if name == "object":
            known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
            closed = others if "patternProperties" not in schema else True
            required = schema.get("required", ())
            return all(self.inhabited(known.get(key, closed)) for key in required if isinstance(key, str))
        if name == "array":
            items: Any = schema.get("items", True)
            listed = isinstance(items, list)
            first: Any = items if listed else schema.get("prefixItems", [])
            rest: Any = schema.get("additionalItems", True) if listed else items
            least = schema.get("minItems", 0)
            if not isinstance(least, int):
                return True  # malformed: the engine says so
            return all(self.inhabited(each) for each in first[:least]) and (least <= len(first) or self.inhabited(rest))
        return True

    def prune(self, schema: Schema) -> Schema:
        """`schema`, known to be inhabited, without its dead parts."""
        if isinstance(schema, bool):
            return schema
        result: SchemaMap = {}
        for keyword, value in schema.items():
            if keyword in ("properties", "patternProperties", "$defs", "definitions"):
                result[keyword] = {name: self._cut(each) for name, each in value.items()}
            elif keyword in ("anyOf", "oneOf", "prefixItems", "allOf") or (keyword == "items" and isinstance(value, list)):
                result[keyword] = [self._cut(each) for each in value]
            elif keyword in ("items", "additionalProperties", "additionalItems"):
                result[keyword] = self._cut(value)
            else:
                result[keyword] = value
        declared: Any = schema.get("type", list(_TYPES))
        alive = self._types(schema)
        if isinstance(declared, list) and len(alive) < len(declared):
            result["type"] = alive
        return result

    def _cut(self, schema: Schema) -> Schema:
        return self.prune(schema) if self.inhabited(schema) else False


def _references(schema: object) -> Iterable[str]:
    """Every `$ref` in a normalised schema (and in its data, where one more does no harm)."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)
