"""What each JSON-schema keyword is to the masks: where subschemas stand under it, and whether it is honoured, dropped or refused.

A table only; `schema.py` walks by it. Words that no draft knows are annotations, as JSON Schema has it, but for misspellings.
"""

from typing import Literal

__all__ = ["FORMATS", "KEYWORDS", "NEUTRAL", "REFUSED", "Kind", "misspelt"]

Kind = Literal["plain", "schema", "schemas", "items", "map", "definitions", "annotation", "base"]
"""What a value holds: no schema, one, a list, one or a list, a map, a map read on demand; or nothing that counts."""

_PLAIN = (
    "type enum const $ref $anchor minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern "
    "format required minProperties maxProperties minItems maxItems"
)
_ANNOTATIONS = (
    "title description default example examples $comment deprecated readOnly writeOnly contentMediaType contentEncoding "
    "contentSchema discriminator"
)

KEYWORDS: dict[str, Kind] = {
    **dict.fromkeys(_PLAIN.split(), "plain"),
    **dict.fromkeys(_ANNOTATIONS.split(), "annotation"),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), "schemas"),
    **dict.fromkeys(("additionalProperties", "additionalItems"), "schema"),
    **dict.fromkeys(("properties", "patternProperties"), "map"),
    **dict.fromkeys(("$defs", "definitions"), "definitions"),
    **dict.fromkeys(("$schema", "$id", "id"), "base"),
    "items": "items",
}

NEUTRAL: dict[str, tuple[object, ...]] = {
    "uniqueItems": (False,),
    "nullable": (False,),
    "minProperties": (0,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
}
"""Values that say nothing, so that a keyword which is refused otherwise can be dropped."""

REFUSED = frozenset(
    {
        "not",
        "if",
        "then",
        "else",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "propertyNames",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedProperties",
        "unevaluatedItems",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "$vocabulary",
        "nullable",
        "extends",
        "disallow",
        "divisibleBy",
    }
)
"""Keywords of some draft (or of OpenAPI) that decide what is valid, and that masks can't hold yet."""

FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"])
"""Formats that are enforced. Any other is an annotation, as JSON Schema has it, and dropped."""


def misspelt(word: str) -> str | None:
    """The keyword that `word` is but for case, hyphens and underscores within, None where it is none."""
    return _SPELLINGS.get(_spelling(word)) if word not in _SPELLINGS.values() else None


def _spelling(word: str) -> str:
    return word[:1].lower() + word[1:].replace("_", "").replace("-", "").lower()


_SPELLINGS = {_spelling(word): word for word in (*REFUSED, *KEYWORDS) if KEYWORDS.get(word) != "annotation"}
