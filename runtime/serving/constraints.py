"""Structured output in every dialect that clients speak, as one `Constraint`.

Called by the routes after parsing. What can't be enforced is refused by name; two constraints at once too.
"""

from collections.abc import Callable, Mapping

import msgspec

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.fields import ConstraintFields
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["constraint_of", "only_one"]


class _SchemaFormat(msgspec.Struct, frozen=True):
    schema: Json | bool
    name: str | None = None
    strict: bool | None = None
    description: str | None = None


class _ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: Json | None = None


class _StructuredOutputs(msgspec.Struct, frozen=True):
    json: Json | str | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None


_STRUCTURED_RULES = Rules(
    refused={"structural_tag": (), "whitespace_pattern": (), "disable_additional_properties": (False,), "_backend": ()},
)


def constraint_of(fields: ConstraintFields) -> Constraint | None:
    """The constraint that a request asks for, None for free text. Raises InvalidRequest where it asks for two."""
    found = dict[str, Constraint]()
    for name, parse in _DIALECTS.items():
        value = getattr(fields, name)
        constraint = None if value is None else parse(value)
        if constraint is not None:
            found[name] = constraint
    return only_one(found)


def only_one(found: Mapping[str, Constraint]) -> Constraint | None:
    """The one constraint of `found` (by field name). Raises InvalidRequest where there are more."""
    if len(found) > 1:
        names = ", ".join(found)
        raise bad_request(f"Only one constraint on the output can be given, got {names}.", next(iter(found)))
    return next(iter(found.values()), None)


def _json(value: Json | str | bool, whitespace_free: bool | None = None) -> JsonSchema:
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError as error:
        raise bad_request("The JSON schema is nested too deeply.") from error
    return JsonSchema(text, whitespace="flexible" if whitespace_free is False else "compact")


def _response_format(value: Json) -> Constraint | None:
    form = as_request(value, _ResponseFormat, Rules(), "response_format.")
    if form.type == "text":
        return None
    if form.type == "json_object":
        return _json({"type": "object"})
    if form.type == "json_schema":
        where = "response_format.json_schema"
        if form.json_schema is None:
            raise bad_request(f"{where} is missing; response_format of type json_schema needs it.", where)
        return _json(as_request(form.json_schema, _SchemaFormat, Rules(), where + ".").schema)
    raise bad_request(
        f"response_format.type must be text, json_object or json_schema, got {form.type[:40]!r}.", "response_format.type"
    )


def _structured_outputs(value: Json) -> Constraint | None:
    where = "structured_outputs."
    form = as_request(value, _StructuredOutputs, _STRUCTURED_RULES, where)
    found = dict[str, Constraint]()
    if form.json is not None:
        found[where + "json"] = _json(form.json, form.disable_any_whitespace)
    if form.json_object:
        found[where + "json_object"] = _json({"type": "object"}, form.disable_any_whitespace)
    if form.regex is not None:
        found[where + "regex"] = Regex(form.regex)
    if form.choice is not None:
        found[where + "choice"] = _choice(form.choice)
    if form.grammar is not None:
        found[where + "grammar"] = Ebnf(form.grammar)
    if not found:
        raise bad_request("structured_outputs must have one of json, json_object, regex, choice, grammar.", "structured_outputs")
    return only_one(found)


def _choice(options: list[str]) -> Choice:
    if not options or not all(options):
        raise bad_request("A choice needs at least one option, and no option may be empty.", "choice")
    return Choice(tuple(options))


_DIALECTS: Mapping[str, Callable[..., Constraint | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "regex": Regex,
    "ebnf": Ebnf,
    "json_schema": _json,
    "guided_json": _json,
    "guided_regex": Regex,
    "guided_choice": _choice,
    "guided_grammar": Ebnf,
}
