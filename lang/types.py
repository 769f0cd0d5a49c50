"""Output types: what a typed `gen` asks of the model, and how its text becomes a value.

`expr.gen` makes one from the type it is given; the executor sends `constraint`, reading a variable calls `parse`.
"""

import enum
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NewType, NotRequired, Required, Union, cast, get_args, get_origin, get_type_hints

from typing_extensions import TypedDict, is_typeddict

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.lang.errors import ProgramMistake

__all__ = ["FLOAT", "INT", "OutputType", "output_type"]

INT = r"0|-?[1-9][0-9]{0,17}"
"""What an int looks like: decimal, no leading zeros, at most 18 digits, so that a model which goes on and on comes to an end."""

FLOAT = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?(e-?[0-9]{1,2})?"
"""What a float looks like: at most 18 digits, 17 decimals and an exponent of two digits, so always finite."""

_SUBSCHEMA = ("items", "additionalProperties")
_SUBSCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs")


@dataclass(frozen=True, slots=True)
class OutputType:
    """`parse` takes the whole text and gives the value; it raises ValueError where the text isn't one.

    `constraint` is what the output is held to, None for free text.
    """

    name: str
    constraint: Constraint | None
    parse: Callable[[str], Any]


def output_type(wanted: object) -> OutputType:
    """The output type of a Python type, a JSON schema (a dict) or a constraint. Raises ProgramMistake for anything else.

    `str` is free text; int, float and bool are written plainly; a Literal or Enum is one of its values; everything else that
    pydantic knows (models, dataclasses, TypedDicts, lists, unions, …) is JSON. Objects hold no keys beyond the declared ones
    unless the type says that they may.
    """
    if isinstance(wanted, NewType):
        return output_type(wanted.__supertype__)
    if isinstance(wanted, JsonSchema | Regex | Choice | Ebnf | StructuralTag):
        return OutputType(type(wanted).__name__, wanted, json.loads if isinstance(wanted, JsonSchema) else str)
    if isinstance(wanted, Mapping):
        return OutputType("JSON", JsonSchema(json.dumps(wanted)), json.loads)
    if wanted is str:
        return OutputType("str", None, str)
    if wanted is int:
        return OutputType("int", Regex(INT), _number(int, INT, "42"))
    if wanted is float:
        return OutputType("float", Regex(FLOAT), _number(float, FLOAT, "0.5"))
    if wanted is bool:
        return _one_of("bool", (True, False))
    if get_origin(wanted) is Literal:
        return _one_of(_name(wanted), get_args(wanted))
    if isinstance(wanted, enum.EnumType):
        return _one_of(wanted.__name__, wanted)
    return _json(wanted)


def _name(wanted: object) -> str:
    return wanted.__name__ if isinstance(wanted, type) else str(wanted).replace("typing.", "")


def _number(convert: Callable[[str], Any], pattern: str, example: str) -> Callable[[str], Any]:
    """A strict reader; white space around the number is let through, for backends that can't hold output to a pattern."""
    whole = re.compile(pattern, re.ASCII)

    def parse(text: str) -> Any:
        if whole.fullmatch(text.strip()) is None:
            raise ValueError(f"expected {'an int' if convert is int else 'a float'} such as {example}, got {text[:80]!r}")
        return convert(text)

    return parse


def _one_of(name: str, values: Iterable[object]) -> OutputType:
    """One of some values, each written as its text."""
    options: dict[str, object] = {}
    for value in values:
        text = _text_of(value, name)
        if text in options:
            raise ProgramMistake(f"{name} has two values that are written {text!r}; a model can't tell them apart.")
        options[text] = value
    if not options or "" in options:
        raise ProgramMistake(f"{name} needs at least one value, and none may be the empty text, for a gen to be one of them.")

    def parse(text: str) -> object:
        if text not in options:
            known = ", ".join(list(options)[:20])
            raise ValueError(f"expected one of {known}, got {text[:80]!r}")
        return options[text]

    return OutputType(name, Choice(tuple(options)), parse)


def _text_of(value: object, name: str) -> str:
    plain = value.value if isinstance(value, enum.Enum) else value
    if isinstance(plain, str):
        return str(plain)
    if plain is None or isinstance(plain, bool | int | float):
        return json.dumps(plain)
    raise ProgramMistake(f"{name} has the value {plain!r:.60}; a gen can be one of texts, numbers, booleans and None only.")


def _json(wanted: object) -> OutputType:
    from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

    if isinstance(wanted, str) or inspect.isroutine(wanted):
        raise ProgramMistake(f"gen needs a type, a pattern, or a number of tokens; got {wanted!r:.80}.")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, _modern(wanted)))
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
        reason = str(error).partition("\n")[0]
        raise ProgramMistake(
            f"gen needs a type that has a JSON schema, a pattern, or a number of tokens; got {wanted!r:.80}: {reason}"
        ) from error
    return OutputType(_name(wanted), JsonSchema(json.dumps(_closed(schema))), adapter.validate_json)


def _closed(schema: Any) -> Any:
    """The schema that a model is to write by: no keys that the type doesn't declare and would only throw away.

    `uniqueItems` of sets goes too: a set takes in what comes twice.
    """
    if not isinstance(schema, dict):
        return schema
    closed: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _SUBSCHEMA:
            closed[keyword] = _closed(value)
        elif keyword in _SUBSCHEMAS:
            closed[keyword] = [_closed(each) for each in value]
        elif keyword in _SUBSCHEMA_MAPS:
            closed[keyword] = {name: _closed(each) for name, each in value.items()}
        elif keyword != "uniqueItems":
            closed[keyword] = value
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _modern(wanted: object) -> object:
    """`wanted`, with its TypedDicts as pydantic takes them: before Python 3.12 it refuses those of `typing`."""
    if sys.version_info >= (3, 12):
        return wanted
    if is_typeddict(wanted):
        required = cast(Any, wanted).__required_keys__
        fields = {
            name: (Required if name in required else NotRequired)[_modern(_bare(hint))]
            for name, hint in get_type_hints(wanted, include_extras=True).items()
        }
        return TypedDict(cast(Any, wanted).__name__, fields)  # type: ignore[operator]  # made at run time
    origin, arguments = get_origin(wanted), get_args(wanted)
    modern = tuple(map(_modern, arguments))
    if origin is None or modern == arguments:
        return wanted
    if origin is types.UnionType:
        origin = Union
    return cast(Any, origin)[modern]


def _bare(hint: object) -> object:
    """A field's type without `Required` and `NotRequired`."""
    return get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
