"""What of a value's content its schemas look at: so that tokens which differ in nothing they see are judged once for all.

Used by `judge.py`. Everything that may apply counts, below conditions too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Reach"]

_WHOLE = frozenset({"const", "enum", "uniqueItems", "contains"})
_SEEN = {
    "string": frozenset({"const", "enum", "pattern", "format", "minLength", "maxLength"}),
    "number": frozenset({"const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "type"}),
    "boolean": frozenset({"const", "enum"}),
    "null": frozenset[str](),
}
_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLE = ("not", "if", "then", "else")
_NAMED = ("required", "properties", "dependentRequired", "dependentSchemas")


@dataclass(slots=True)
class Reach:
    """Subschemas that may apply to one value, with all that stand in place of them."""

    definitions: Definitions
    schemas: dict[int, SchemaMap] = field(default_factory=dict)

    def add(self, schemas: Iterable[Schema]) -> None:
        """Let these apply too."""
        for schema in schemas:
            if not isinstance(schema, dict) or id(schema) in self.schemas:
                continue
            self.schemas[id(schema)] = schema
            self.add(each for word in _LISTS for each in schema.get(word, ()))
            self.add(schema[word] for word in _SINGLE if word in schema)
            self.add(schema.get("dependentSchemas", {}).values())
            if "$ref" in schema:
                self.add((self.definitions[schema["$ref"]],))

    @property
    def sees_whole(self) -> bool:
        """Whether something compares the value with others, with everything in it."""
        return any(_WHOLE & schema.keys() and _compares(schema) for schema in self.schemas.values())

    def sees(self, kind: str) -> bool:
        """Whether something looks at the content of a primitive of this type."""
        return any(_SEEN[kind] & schema.keys() for schema in self.schemas.values())

    def strings(self) -> tuple[frozenset[str], tuple[SchemaMap, ...]]:
        """The strings that something tells apart from all others, and the schemas that look at a string otherwise."""
        told: set[str] = set()
        for schema in self.schemas.values():
            listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
            told.update(value for value in listed if isinstance(value, str))
        looking = _SEEN["string"] - {"const", "enum"}
        return frozenset(told), tuple(schema for schema in self.schemas.values() if looking & schema.keys())

    def names(self) -> frozenset[str] | None:
        """The keys that something tells apart from all others, None where patterns do."""
        found: set[str] = set()
        for schema in self.schemas.values():
            if "patternProperties" in schema or "propertyNames" in schema:
                return None
            for word in _NAMED:
                found.update(schema.get(word, ()))
            for listed in schema.get("dependentRequired", {}).values():
                found.update(listed)
        return frozenset(found)


def _compares(schema: SchemaMap) -> bool:
    """Whether a schema looks at items together, or has a container among its fixed values."""
    listed = [*schema.get("enum", ()), schema.get("const")]
    return bool({"uniqueItems", "contains"} & schema.keys()) or any(isinstance(value, dict | list) for value in listed)
