"""The part of `relax.py` that is about objects: names, counts, and what one property says about others."""

import itertools
import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.ecma import python_pattern
from branchpoint.constrained.patterns import engine_patterns
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Context", "ObjectRules", "Relaxing"]

_MAX_SPLITS = 5
_MAX_WAYS = 8
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")


@dataclass(frozen=True, slots=True)
class Context:
    """Who answers for what is left out: the id of a normalised dict, and whether its parts apply only sometimes.

    `any_order`: whether keys may come in any order here, where the engine affords it.
    """

    owner: int
    conditional: bool
    any_order: bool = False


class Relaxing(Protocol):
    """What the rules need of the walk that they are part of."""

    definitions: Definitions
    dropped: frozenset[str]

    def give_up(self, context: Context, keyword: str) -> None:
        """Leave a keyword to the judge."""

    def part(self, schema: Schema, context: Context) -> Schema:
        """Relax a subschema that always applies."""

    def branch(self, schema: Schema, context: Context) -> Schema:
        """Relax a subschema that applies sometimes."""


class ObjectRules:
    """What a schema says about objects, for one walk."""

    def __init__(self, walk: Relaxing) -> None:
        self._walk = walk

    def apply(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        """Everything that a schema says about objects."""
        if "properties" in schema:
            result["properties"] = {name: self._walk.part(each, context) for name, each in schema["properties"].items()}
        if "additionalProperties" in schema:
            result["additionalProperties"] = self._walk.part(schema["additionalProperties"], context)
        if "patternProperties" in schema:
            self._patterns(schema, result, context)
        self._counts(schema, result, extra, context)
        if "unevaluatedProperties" in schema and schema["unevaluatedProperties"] is not True:
            self._unevaluated(schema, result, context)
        if "propertyNames" in schema:
            self._names(schema, result, context)
        self._dependencies(schema, extra, context)

    def _patterns(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        written: dict[str, Schema] = {}
        if len(schema["patternProperties"]) == 1 and _finds_any(next(iter(schema["patternProperties"]))):
            self._any_name(schema, result, context)
            return
        for pattern, each in schema["patternProperties"].items():
            patterns = engine_patterns(pattern)
            if (
                patterns is None
                or len(patterns) > 1
                or "patternProperties" in self._walk.dropped
                or pattern in self._walk.dropped
            ):
                self._walk.give_up(context, "patternProperties")
                self._open(schema, result, context)
                for other in schema["patternProperties"].values():
                    self._walk.branch(other, context)
                return
            written[patterns[0]] = self._walk.part(each, context)
        result["patternProperties"] = written

    def _any_name(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        """A pattern that every name has: what it says holds for declared properties too, and there are no others."""
        said = next(iter(schema["patternProperties"].values()))
        differing = {name: each for name, each in schema.get("properties", {}).items() if each != said}
        if differing and "siblings" in self._walk.dropped:
            self._walk.give_up(context, "patternProperties")
        else:
            for name in differing:
                result["properties"][name] = {"allOf": [result["properties"][name], self._walk.part(said, context)]}
        result["additionalProperties"] = self._walk.part(said, context)

    def _open(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        """Let any further key in, where keys go by patterns that the engine can't follow."""
        result.pop("additionalProperties", None)
        result.pop("patternProperties", None)

    def _counts(self, schema: SchemaMap, result: SchemaMap, extra: list[Schema], context: Context) -> None:
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        named = len(schema.get("required", ()))
        wanted = _wanted(schema, least) if least > max(1, named) else []
        if wanted:
            extra.append(wanted[0] if len(wanted) == 1 else {"anyOf": wanted})
        elif least and ("minProperties" in self._walk.dropped or least > max(1, named)):
            self._walk.give_up(context, "minProperties")
            if "minProperties" not in self._walk.dropped:
                result["minProperties"] = max(1, named)
        elif least:
            result["minProperties"] = least
        if most is not None and "minProperties" in self._walk.dropped:
            self._walk.give_up(context, "maxProperties")
        elif most is not None:
            result["maxProperties"] = most

    def _names(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        names: Any = schema["propertyNames"]
        if names is True or names == {}:
            return
        if names is False:
            result["maxProperties"] = 0
            return
        allowed = names.get("enum", [names["const"]] if "const" in names else None)
        bare = set(names) - {"type"}
        others = result.get("additionalProperties", True)
        if names.get("type", "string") == "string" and "patternProperties" not in result and others is not False:
            if allowed is not None and len(bare) == 1:
                known = result.get("properties", {})
                result["properties"] = {
                    name: known.get(name, others) for name in dict.fromkeys([*known, *allowed]) if name in allowed
                }
                result["additionalProperties"] = False
                return
            pattern = _name_pattern(names, bare)
            if pattern is not None and not result.get("properties"):
                result["patternProperties"] = {pattern: others}
                result["additionalProperties"] = False
                return
        self._walk.give_up(context, "propertyNames")

    def _dependencies(self, schema: SchemaMap, extra: list[Schema], context: Context) -> None:
        required: dict[str, list[str]] = schema.get("dependentRequired", {})
        schemas: dict[str, Schema] = schema.get("dependentSchemas", {})
        entries: list[tuple[str, Schema]] = [(name, {"required": names}) for name, names in required.items() if names]
        entries += list(schemas.items())
        if len(entries) > _MAX_SPLITS:
            self._walk.give_up(context, "dependentRequired" if required else "dependentSchemas")
            return
        for name, then in entries:
            absent: Schema = {"properties": {name: False}}
            extra.append({"anyOf": [absent, {"allOf": [{"required": [name]}, self._walk.branch(then, context)]}]})

    def _unevaluated(self, schema: SchemaMap, result: SchemaMap, context: Context) -> None:
        rest = schema["unevaluatedProperties"]
        if "additionalProperties" in schema:
            return  # everything is evaluated
        if not any(word in schema for word in _IN_PLACE):
            result["additionalProperties"] = self._walk.branch(rest, context)
            return
        self._walk.give_up(context, "unevaluatedProperties")
        names = self._evaluated(schema, set())
        if rest is False and names is not None:
            known = result.get("properties", {})
            result["properties"] = {**known, **{name: True for name in names if name not in known}}
            result["additionalProperties"] = False

    def _evaluated(self, schema: Schema, seen: set[int]) -> list[str] | None:
        """The names that may be evaluated in place, in order; None where any may."""
        if isinstance(schema, bool) or id(schema) in seen:
            return []
        seen.add(id(schema))
        if any(word in schema for word in ("patternProperties", "additionalProperties")):
            return None
        if "unevaluatedProperties" in schema and len(seen) > 1:
            return None
        found = list(schema.get("properties", {}))
        inner = [each for word in ("allOf", "anyOf", "oneOf") for each in schema.get(word, ())]
        inner += [schema[word] for word in ("if", "then", "else") if word in schema]
        inner += list(schema.get("dependentSchemas", {}).values())
        if "$ref" in schema:
            inner.append(self._walk.definitions[schema["$ref"]])
        for each in inner:
            names = self._evaluated(each, seen)
            if names is None:
                return None
            found += names
        return list(dict.fromkeys(found))


def _wanted(schema: SchemaMap, least: int) -> list[Schema]:
    """The ways to have so many properties of a closed object as lists of required ones, empty where they are not few."""
    if schema.get("additionalProperties", True) is not False or "patternProperties" in schema:
        return []
    required = schema.get("required", ())
    others = [name for name, each in schema.get("properties", {}).items() if each is not False and name not in required]
    missing = least - len(required)
    if not 0 < missing <= len(others) or math.comb(len(others), missing) > _MAX_WAYS:
        return []
    return [{"required": [*required, *names]} for names in itertools.combinations(others, missing)]


def _finds_any(pattern: str) -> bool:
    """Whether a pattern finds something in every text."""
    written = None if "$" in pattern else python_pattern(pattern)
    try:
        return written is not None and re.match(written, "") is not None
    except re.error:
        return False


def _name_pattern(names: SchemaMap, bare: set[str]) -> str | None:
    """One pattern for what `propertyNames` says, None where it takes more than one."""
    if bare == {"pattern"}:
        written = engine_patterns(names["pattern"])
        return written[0] if written is not None and len(written) == 1 else None
    if bare and bare <= {"minLength", "maxLength"}:
        return f"^[\\s\\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return None
