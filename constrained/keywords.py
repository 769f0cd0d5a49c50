"""What each JSON-schema keyword is to the masks: where subschemas stand under it, and what its value must be.

Tables only; `normalise.py` walks by them. Words that no draft knows are annotations, as JSON Schema has it, but for misspellings.
"""

from collections.abc import Callable
from typing import Any, Literal

from branchpoint.constrained.formats import ENGINE_FORMATS, FORMAT_PATTERNS

__all__ = ["CHECKS", "FORMATS", "KEYWORDS", "REFUSED", "TYPES", "Kind", "misspelt"]

Kind = Literal["plain", "schema", "schemas", "items", "map", "annotation", "base", "reference", "dependencies"]
"""What a value holds: no schema, one, a list, one or a list, a map; nothing that counts; a way to others; old dependencies."""

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")

_PLAIN = (
    "type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format required "
    "minProperties maxProperties minItems maxItems uniqueItems minContains maxContains dependentRequired"
)
_ANNOTATIONS = (
    "title description default example examples $comment deprecated readOnly writeOnly contentMediaType contentEncoding "
    "contentSchema discriminator nullable $vocabulary"
)
_SCHEMAS = "additionalProperties additionalItems unevaluatedProperties unevaluatedItems propertyNames contains not if then else"
_BASES = "$schema $id id $anchor $dynamicAnchor $recursiveAnchor $defs definitions"

KEYWORDS: dict[str, Kind] = {
    **dict.fromkeys(_PLAIN.split(), "plain"),
    **dict.fromkeys(_ANNOTATIONS.split(), "annotation"),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), "schemas"),
    **dict.fromkeys(_SCHEMAS.split(), "schema"),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), "map"),
    **dict.fromkeys(_BASES.split(), "base"),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), "reference"),
    "items": "items",
    "dependencies": "dependencies",
}

REFUSED = frozenset({"extends", "disallow", "divisibleBy"})
"""Keywords of draft 3 that decide what is valid, and that no later draft has."""

FORMATS = frozenset((*ENGINE_FORMATS, *FORMAT_PATTERNS))
"""Formats that are enforced. Any other is an annotation, as JSON Schema has it, and dropped."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


_COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"]

CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_COUNTS, (_is_count, "a count, 0 or more")),
    **dict.fromkeys(("minimum", "maximum"), (_is_number, "a number")),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"), (lambda value: _is_number(value) or isinstance(value, bool), "a number")
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("pattern", "format"), (lambda value: isinstance(value, str), "a string")),
    "required": (_is_names, "a list of names"),
    "enum": (lambda value: isinstance(value, list), "a list of values"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "type": (_is_type, f"one or more of {', '.join(TYPES)}"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_is_names, value.values())),
        "lists of names by name",
    ),
}
"""By keyword: whether a value is one that it may have, and what was expected."""


def misspelt(word: str) -> str | None:
    """The keyword that `word` is but for case, hyphens and underscores within, None where it is none."""
    return _SPELLINGS.get(_spelling(word)) if word not in _SPELLINGS.values() else None


def _spelling(word: str) -> str:
    return word[:1].lower() + word[1:].replace("_", "").replace("-", "").lower()


_SPELLINGS = {_spelling(word): word for word in (*REFUSED, *KEYWORDS) if KEYWORDS.get(word) != "annotation"}
