"""How llguidance is told to write JSON for a normalised schema: whitespace, escapes, and what that narrows.

Last step of a JSON-schema constraint before the engine.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from branchpoint.constrained.schema import Schema
from branchpoint.constrained.spec import Narrowing, Whitespace

__all__ = ["JsonOptions", "has_open_keys", "json_options"]

_SHORT_ESCAPES = '"\\bfnrt'
_VALUES = frozenset({"const", "enum", "default", "examples"})
_FLEXIBLE = r"( |\n {0,32})?"
_NO_CODE_ESCAPES = (
    "since keys may stand beside those that are known, strings hold no control characters other than \\b, \\f, \\n, \\r, \\t"
)


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """Schema text and options for the engine, and what they narrow."""

    text: str
    engine: Mapping[str, object]
    narrowed: tuple[Narrowing, ...]


def json_options(schema: Schema, whitespace: Whitespace, parsed: Schema, *, open_keys: bool) -> JsonOptions:
    """The options that keep `schema` exact; `parsed` is what it was made of, whose pointers the caller knows.

    With `open_keys` (see `has_open_keys`) each character has one spelling only (no `\\u` escapes), so that no escaped key slips
    past a declared one.
    """
    options: dict[str, object] = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
    if whitespace == "flexible":
        options |= {"whitespace_flexible": True, "whitespace_pattern": _FLEXIBLE}
    narrowed: tuple[Narrowing, ...] = ()
    if open_keys:
        options["json_allowed_escapes"] = _SHORT_ESCAPES
        pointer, keyword = next(_open_places(parsed, ""), ("", "additionalProperties"))
        narrowed = (Narrowing(pointer, keyword, _NO_CODE_ESCAPES),)
    return JsonOptions(json.dumps({} if schema is True else schema), options, narrowed)


def has_open_keys(at: object) -> bool:
    """Whether some object may hold keys of the model's own spelling beside declared ones."""
    if isinstance(at, dict):
        declares = bool(at.get("properties")) and at.get("additionalProperties", True) is not False
        return declares or bool(at.get("patternProperties")) or any(map(has_open_keys, at.values()))
    return isinstance(at, list) and any(map(has_open_keys, at))


def _open_places(at: object, pointer: str) -> Iterator[tuple[str, str]]:
    """Pointer and name of the keywords of a schema as it was written that let keys in beside others."""
    if isinstance(at, dict):
        word = "additionalProperties" if "additionalProperties" in at else "properties"
        if isinstance(at.get("properties"), dict) and at["properties"] and at.get("additionalProperties", True) is not False:
            yield f"{pointer}/{word}", word
        elif "patternProperties" in at:
            yield f"{pointer}/patternProperties", "patternProperties"
        for key, each in at.items():
            if key not in _VALUES:
                yield from _open_places(each, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(at, list):
        for number, each in enumerate(at):
            yield from _open_places(each, f"{pointer}/{number}")
