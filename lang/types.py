"""Output types: what a typed `gen` asks of the model, and how its text becomes a value.

`expr.gen` makes one from the type it is given; the executor sends `constraint`, reading a variable calls `parse`.
"""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args, get_origin

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.lang.errors import ProgramMistake

__all__ = ["OutputType", "output_type"]


@dataclass(frozen=True, slots=True)
class OutputType:
    """`parse` takes the whole text and gives the value; it raises ValueError where the text isn't one."""

    name: str
    constraint: Constraint | None
    parse: Callable[[str], Any]


def output_type(wanted: object) -> OutputType:
    """The output type of a Python type, a JSON schema (a dict) or a constraint. Raises ProgramMistake for anything else."""
    if isinstance(wanted, JsonSchema | Regex | Choice | Ebnf):
        return OutputType(type(wanted).__name__, wanted, json.loads if isinstance(wanted, JsonSchema) else str)
    if isinstance(wanted, Mapping):
        return OutputType("JSON", JsonSchema(json.dumps(wanted)), json.loads)
    if wanted is str:
        return OutputType("str", None, str)
    if get_origin(wanted) is Literal and all(isinstance(option, str) for option in get_args(wanted)):
        return OutputType("Literal", Choice(get_args(wanted)), str)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum) and all(isinstance(item.value, str) for item in wanted):
        return OutputType(wanted.__name__, Choice(tuple(item.value for item in wanted)), wanted)
    return _by_adapter(wanted)


def _by_adapter(wanted: object) -> OutputType:
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, errors

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, wanted))
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, errors.PydanticUserError) as error:
        raise ProgramMistake(f"gen needs a type that has a JSON schema, or a number of tokens; got {wanted!r}.") from error
    return OutputType(getattr(wanted, "__name__", str(wanted)), JsonSchema(json.dumps(schema)), adapter.validate_json)
