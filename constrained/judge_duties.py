"""What always applies to a value, found once for each place in a schema: the dicts of which something is left to judge.

Used by `judge.py`.
"""

from collections.abc import Iterable, Set

from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.schema import Schema, SchemaMap

__all__ = ["Duties", "DutyBook", "judged_words"]

Duties = tuple[SchemaMap, ...]
_BOUNDS = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_IN_PLACE = "properties patternProperties additionalProperties $ref allOf anyOf oneOf if then else dependentSchemas"
_EVALUATING = frozenset(_IN_PLACE.split())
_BESIDE: dict[str, frozenset[str]] = {
    "if": frozenset({"then", "else"}),
    "contains": frozenset({"minContains", "maxContains", "maxItems"}),
    "uniqueItems": frozenset({"prefixItems", "items"}),
    "patternProperties": frozenset({"properties", "additionalProperties"}),
    "unevaluatedProperties": _EVALUATING,
    "unevaluatedItems": _EVALUATING | {"prefixItems", "items", "contains", "minContains", "maxContains"},
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _BOUNDS),
}


class DutyBook:
    """For one normalised schema, and the ids of its dicts that are to be judged. Only remembers answers."""

    def __init__(self, root: Schema, definitions: Definitions, judged: Set[int]) -> None:
        self._definitions = definitions
        self._concerns: set[int] = set()
        self._duties: dict[int, Duties] = {}
        self.places: dict[int, SchemaMap] = {}
        self._mark(root, judged)

    def duties(self, schema: Schema) -> Duties:
        """The parts of a schema that always apply in place, as far as something to judge lies in them."""
        if isinstance(schema, bool):
            return ()
        if id(schema) not in self._duties:
            found: dict[int, SchemaMap] = {}
            self._collect(schema, found)
            self._duties[id(schema)] = tuple(each for each in found.values() if id(each) in self._concerns)
        return self._duties[id(schema)]

    def _collect(self, schema: Schema, found: dict[int, SchemaMap]) -> None:
        if isinstance(schema, bool) or id(schema) in found:
            return
        found[id(schema)] = schema
        for each in _in_place(schema, self._definitions):
            self._collect(each, found)

    def _mark(self, root: Schema, judged: Set[int]) -> None:
        """Which dicts have something to judge in parts that always apply: themselves, or below; a fixed point over references."""
        waiting: list[Schema] = [root]
        below: dict[int, list[int]] = {}
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, bool) or id(schema) in self.places:
                continue
            self.places[id(schema)] = schema
            parts = [each for each in (*_in_place(schema, self._definitions), *_parts(schema)) if isinstance(each, dict)]
            waiting += parts
            for each in parts:
                below.setdefault(id(each), []).append(id(schema))
        marked = [number for number in self.places if number in judged]
        while marked:
            number = marked.pop()
            if number not in self._concerns:
                self._concerns.add(number)
                marked += below.get(number, ())


def _in_place(schema: SchemaMap, definitions: Definitions) -> Iterable[Schema]:
    yield from schema.get("allOf", ())
    if "$ref" in schema:
        yield definitions[schema["$ref"]]


def _parts(schema: SchemaMap) -> Iterable[Schema]:
    yield from schema.get("prefixItems", ())
    for keyword in ("properties", "patternProperties"):
        yield from schema.get(keyword, {}).values()
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield schema[keyword]


def judged_words(schema: SchemaMap, words: frozenset[str]) -> SchemaMap:
    """The part of a schema that is to be judged, with what its words look at beside them."""
    kept = {word for word in words if word in schema}
    for word in sorted(kept):
        kept |= _BESIDE.get(word, frozenset()) & schema.keys()
    return {word: value for word, value in schema.items() if word in kept}
