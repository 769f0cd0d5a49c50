"""Structured output in every dialect that clients speak, as one `Constraint`.

Called by the routes after parsing. What can't be enforced is refused by name; two constraints at once too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.spec import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    KeyOrder,
    Regex,
    Strictness,
    StructuralTag,
    Whitespace,
)
from branchpoint.constrained.tag_format import read_tag
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.fields import ConstraintFields
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["FREE", "Asked", "constraint_of", "nested_format", "only_one", "schema_of", "tag_of"]


@dataclass(frozen=True, slots=True)
class Asked:
    """The constraint that a request asks for, None for free text, and the field that does."""

    constraint: Constraint | None = None
    field: str = ""

    @property
    def params(self) -> Mapping[str | None, str]:
        """What a refusal is about that names nothing: the engine names every option but the constraint."""
        return {None: self.field} if self.constraint is not None else {}


FREE = Asked()


class _SchemaFormat(msgspec.Struct, frozen=True):
    schema: Json | bool
    name: str | None = None
    strict: bool | None = None
    description: str | None = None
    order: KeyOrder | None = None
    strictness: Strictness | None = None


class _ResponseFormat(msgspec.Struct, frozen=True):
    type: str
    json_schema: Json | None = None


class _StructuredOutputs(msgspec.Struct, frozen=True):
    json: Json | str | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Json | str | None = None
    disable_any_whitespace: bool | None = None
    order: KeyOrder | None = None
    strictness: Strictness | None = None


_STRUCTURED_RULES = Rules(
    refused={"whitespace_pattern": (), "disable_additional_properties": (False,), "_backend": ()},
)


def constraint_of(fields: ConstraintFields) -> Asked:
    """The constraint that a request asks for. Raises InvalidRequest where it asks for two."""
    found = list[Asked]()
    for name, parse in _DIALECTS.items():
        value = getattr(fields, name)
        if value is not None:
            found.append(parse(value, name))
    return only_one(found)


def nested_format(flat: Json) -> Json:
    """The `response_format` that a format with its schema's fields beside its type means, as later APIs have it."""
    if flat.get("type") != "json_schema":
        return flat
    return {"type": "json_schema", "json_schema": {name: value for name, value in flat.items() if name != "type"}}


def only_one(found: Iterable[Asked]) -> Asked:
    """The one constraint of `found`, if any. Raises InvalidRequest where there are more."""
    asked = [one for one in found if one.constraint is not None]
    if len(asked) > 1:
        names = ", ".join(one.field for one in asked)
        raise bad_request(f"Only one constraint on the output can be given, got {names}.", asked[0].field)
    return asked[0] if asked else FREE


def schema_of(
    value: Json | str | bool,
    field: str,
    *,
    whitespace: bool = False,
    order: KeyOrder | None = None,
    strictness: Strictness | None = None,
) -> Asked:
    """A JSON schema, as text or as the object itself. Raises InvalidRequest where it nests too deeply."""
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError as error:
        raise bad_request(f"The JSON schema in {field} is nested too deeply.", field) from error
    spaces: Whitespace = "flexible" if whitespace else "compact"
    return Asked(JsonSchema(text, spaces, order=order or "declared", strictness=strictness or "exact"), field)


def tag_of(value: Json | str, field: str, *, whitespace: bool = False, strictness: Strictness | None = None) -> Asked:
    """A structural tag, as text or as the object itself. Raises InvalidRequest where it has no shape that is known."""
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        read_tag(text)
    except RecursionError as error:
        raise bad_request(f"The structural tag in {field} is nested too deeply.", field) from error
    except GrammarError as error:
        raise bad_request(str(error), field) from error
    return Asked(StructuralTag(text, "flexible" if whitespace else "compact", strictness or "exact"), field)


def _response_format(value: Json, field: str) -> Asked:
    if value.get("type") == "structural_tag":
        return tag_of(value, field)
    form = as_request(value, _ResponseFormat, Rules(), field + ".")
    if form.type == "text":
        return FREE
    if form.type == "json_object":
        return schema_of({"type": "object"}, field)
    if form.type == "json_schema":
        where = field + ".json_schema"
        if form.json_schema is None:
            raise bad_request(f"{where} is missing; {field} of type json_schema needs it.", where)
        asked = as_request(form.json_schema, _SchemaFormat, Rules(), where + ".")
        return schema_of(asked.schema, field, order=asked.order, strictness=asked.strictness)
    raise bad_request(
        f"{field}.type must be text, json_object, json_schema or structural_tag, got {form.type[:40]!r}.", field + ".type"
    )


def _structured_outputs(value: Json, field: str) -> Asked:
    form = as_request(value, _StructuredOutputs, _STRUCTURED_RULES, field + ".")
    whitespace = form.disable_any_whitespace is False
    if form.order is not None and form.json is None:
        raise bad_request(f"{field}.order is about the keys of a JSON schema; it needs {field}.json.", field + ".order")
    if form.strictness is not None and form.json is None and form.structural_tag is None:
        why = f"is about a JSON schema; it needs {field}.json or {field}.structural_tag."
        raise bad_request(f"{field}.strictness {why}", field + ".strictness")
    found = list[Asked]()
    if form.json is not None:
        schema = schema_of(form.json, field + ".json", whitespace=whitespace, order=form.order, strictness=form.strictness)
        found.append(schema)
    if form.json_object:
        found.append(schema_of({"type": "object"}, field + ".json_object", whitespace=whitespace))
    if form.regex is not None:
        found.append(_regex(form.regex, field + ".regex"))
    if form.choice is not None:
        found.append(_choice(form.choice, field + ".choice"))
    if form.grammar is not None:
        found.append(_ebnf(form.grammar, field + ".grammar"))
    if form.structural_tag is not None:
        tag = tag_of(form.structural_tag, field + ".structural_tag", whitespace=whitespace, strictness=form.strictness)
        found.append(tag)
    if not found:
        raise bad_request(f"{field} must have one of json, json_object, regex, choice, grammar, structural_tag.", field)
    return only_one(found)


def _choice(options: list[str], field: str) -> Asked:
    if not options or not all(options):
        raise bad_request(f"{field} needs at least one option, and no option may be empty.", field)
    return Asked(Choice(tuple(options)), field)


def _regex(pattern: str, field: str) -> Asked:
    return Asked(Regex(pattern), field)


def _ebnf(grammar: str, field: str) -> Asked:
    return Asked(Ebnf(grammar), field)


_DIALECTS: Mapping[str, Callable[..., Asked]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "regex": _regex,
    "ebnf": _ebnf,
    "json_schema": schema_of,
    "guided_json": schema_of,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _ebnf,
}
