"""How llguidance is told to write JSON for a normalised schema: whitespace, escapes, and what that narrows.

Last step of a JSON-schema constraint before the engine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from branchpoint.constrained.schema import Schema
from branchpoint.constrained.spec import Narrowing, Whitespace

__all__ = ["JsonOptions", "has_open_keys", "json_options"]

_SHORT_ESCAPES = '"\\bfnrt'
_FLEXIBLE = r"( |\n {0,32})?"
_NO_CODE_ESCAPES = "strings hold no control characters other than \\b, \\f, \\n, \\r and \\t"


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """Schema text and options for the engine, and what they narrow."""

    text: str
    engine: Mapping[str, object]
    narrowed: tuple[Narrowing, ...]


def json_options(schema: Schema, whitespace: Whitespace, *, open_keys: bool) -> JsonOptions:
    """The options that keep `schema` exact.

    With `open_keys` (see `has_open_keys`) each character has one spelling only (no `\\u` escapes), so that no escaped key slips
    past a declared one.
    """
    options: dict[str, object] = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
    if whitespace == "flexible":
        options |= {"whitespace_flexible": True, "whitespace_pattern": _FLEXIBLE}
    narrowed: tuple[Narrowing, ...] = ()
    if open_keys:
        options["json_allowed_escapes"] = _SHORT_ESCAPES
        narrowed = (Narrowing("", "additionalProperties", _NO_CODE_ESCAPES),)
    return JsonOptions(json.dumps({} if schema is True else schema), options, narrowed)


def has_open_keys(at: object) -> bool:
    """Whether some object may hold keys of the model's own spelling beside declared ones."""
    if isinstance(at, dict):
        declares = bool(at.get("properties")) and at.get("additionalProperties", True) is not False
        return declares or bool(at.get("patternProperties")) or any(map(has_open_keys, at.values()))
    return isinstance(at, list) and any(map(has_open_keys, at))
