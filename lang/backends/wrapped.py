"""Constraints for servers that hold output to JSON objects only: the value travels as an object's one property.

`wrap` gives the schema to send, and turns what comes back into the text that a program asked for. What came is checked, since
the server is trusted with its answer's form, not with our value.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import jsonschema_rs

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.lang.errors import BackendError, NotSupported, ProgramMistake
from branchpoint.lang.types import FLOAT, INT

__all__ = ["WRAPPABLE", "Wrapped", "wrap"]

WRAPPABLE = frozenset({"json_schema", "choice", "regex"})
"""Tags of the constraints that `wrap` takes."""

_KEY = "value"


@dataclass(frozen=True, slots=True)
class Wrapped:
    """`schema` is an object's. `inside`: the value is its property `value`, and has to be taken out."""

    schema: Mapping[str, object]
    constraint: Constraint
    inside: bool

    def unwrap(self, text: str) -> str:
        """The program's text of a whole answer. Raises BackendError where it isn't what the constraint asks for."""
        try:
            value = json.loads(text)
            if self.inside:
                value = value[_KEY]
        except (ValueError, KeyError, TypeError) as error:
            raise BackendError(f"The server was asked for JSON of a schema and answered {text[:200]!r}.", body=text) from error
        plain = _plain(self.constraint, value, text if not self.inside else None)
        if plain is None:
            raise BackendError(f"The server's answer isn't what it was held to: {text[:200]!r}.", body=text)
        return plain


def wrap(constraint: Constraint) -> Wrapped:
    """The constraint as a schema of an object. Raises NotSupported for grammars, ProgramMistake for a schema that isn't JSON."""
    match constraint:
        case JsonSchema(schema=text):
            schema = _parsed(text)
            return Wrapped(schema, constraint, inside=False) if schema.get("type") == "object" else _inside(schema, constraint)
        case Choice(options=options):
            return _inside({"type": "string", "enum": list(options)}, constraint)
        case Regex(pattern=pattern):
            kind = {INT: "integer", FLOAT: "number"}.get(pattern)
            return _inside({"type": kind} if kind else {"type": "string", "pattern": f"^(?:{pattern})$"}, constraint)
        case Ebnf() | StructuralTag():
            raise NotSupported("This server holds output to JSON schemas, choices and patterns; it takes no grammar.")


def _inside(schema: Mapping[str, object], constraint: Constraint) -> Wrapped:
    inner = {keyword: value for keyword, value in schema.items() if keyword not in ("$defs", "definitions")}
    shared = {keyword: schema[keyword] for keyword in ("$defs", "definitions") if keyword in schema}
    outer = {"type": "object", "properties": {_KEY: inner}, "required": [_KEY], "additionalProperties": False}
    return Wrapped(outer | shared, constraint, inside=True)


def _parsed(text: str) -> dict[str, object]:
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ProgramMistake(f"The JSON schema isn't JSON: {error}.") from None
    return schema if isinstance(schema, dict) else {} if schema else {"not": {}}


def _plain(constraint: Constraint, value: object, whole: str | None) -> str | None:
    """The text of a value; None where it breaks the constraint."""
    match constraint:
        case JsonSchema(schema=text):
            valid = jsonschema_rs.is_valid(json.loads(text), value)
            written = whole if whole is not None else json.dumps(value, ensure_ascii=False)
            return written if valid else None
        case Choice(options=options):
            return value if isinstance(value, str) and value in options else None
        case Regex(pattern=pattern):
            written = value if isinstance(value, str) else json.dumps(value).replace("e+", "e")
            return written if _matches(pattern, written) else None
        case Ebnf() | StructuralTag():
            return None


def _matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches; a pattern in another dialect than Python's is taken on the server's word."""
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return True
