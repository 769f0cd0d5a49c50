"""What each JSON-schema keyword is to the masks: where subschemas stand under it, and whether it is honoured, dropped or refused.

A table only; `schema.py` walks by it. Whatever isn't in it is refused by name.
"""

from typing import Literal

__all__ = ["FORMATS", "KEYWORDS", "NEUTRAL", "Kind"]

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

FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"])
"""Formats that are enforced. Any other is an annotation, as JSON Schema has it, and dropped."""
