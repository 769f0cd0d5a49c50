"""A keyword that can't be held is refused by name, or what it stands in is left out where the caller allows it: never looser."""

import itertools
import json

import jsonschema
import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import UnsupportedKeyword
from branchpoint.constrained.narrowing import leave_out
from branchpoint.constrained.spec import JsonSchema, Narrowing, StructuralTag
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import accepts, compiled

INTEGER = {"type": "integer"}
SLIP = {"type": "string", "minlength": 3}
ABROAD = {"$ref": "http://example.com/x"}

NARROWED: dict[str, tuple[dict[str, object], str, str, list[str], list[str]]] = {
    "an optional property": (
        {"properties": {"a": INTEGER, "b": SLIP}, "type": "object"},
        "/properties/b/minlength",
        "/properties/b",
        ["{}", '{"a":1}', '{"c":"x"}'],
        ['{"b":"abc"}', '{"a":"1"}'],
    ),
    "a branch": (
        {"anyOf": [{"items": ABROAD, "type": "array"}, INTEGER]},
        "/anyOf/0/items/$ref",
        "/anyOf/0/items",
        ["1", "[]"],
        ["[1]", '"x"'],
    ),
    "other keys": (
        {"properties": {"a": {}}, "additionalProperties": SLIP, "type": "object"},
        "/additionalProperties/minlength",
        "/additionalProperties",
        ['{"a":1}'],
        ['{"b":"abc"}'],
    ),
    "a definition": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}, "s": SLIP}}}},
        "/$defs/n/properties/s/minlength",
        "/$defs/n/properties/s",
        ['{"n":{}}', "{}"],
        ['{"n":{"s":"abc"}}', '{"s":"abc"}'],
    ),
    "what comes of a condition": (
        {"type": "object", "if": {"required": ["a"]}, "then": SLIP, "properties": {"a": {}, "b": {}}},
        "/then/minlength",
        "/then",
        ['{"b":1}', "{}"],
        ['{"a":1}'],
    ),
}


@pytest.mark.parametrize("name", NARROWED)
def test_what_can_not_be_held_is_left_out_where_that_is_allowed(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str
) -> None:
    schema, pointer, where, good, bad = NARROWED[name]
    with pytest.raises(UnsupportedKeyword) as refused:
        compiled(compiler, JsonSchema(json.dumps(schema)))
    assert refused.value.pointer == pointer
    grammar = compiled(compiler, JsonSchema(json.dumps(schema), strictness="stricter"))
    told = Narrowing(pointer, pointer.rpartition("/")[2], f"nothing is written that the schema at {where} is about")
    assert grammar.narrowed[0] == told
    assert [text for text in good if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in bad if accepts(grammar, vocabulary, text)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"minlength": 3},
        {"type": "object", "properties": {"a": SLIP}, "required": ["a"]},
        {"not": SLIP},
        {"oneOf": [INTEGER, SLIP]},
        {"if": SLIP, "then": INTEGER},
        {"type": "array", "contains": SLIP, "maxContains": 1, "minContains": 0},
        {"type": "object", "properties": {"a": SLIP}, "not": {"$ref": "#/properties/a"}},
        {
            "$id": "http://a.example/",
            "type": "object",
            "properties": {"a": SLIP, "b": {"$ref": "https://json-schema.org/schema"}},
        },
    ],
)
def test_where_leaving_it_out_may_let_more_in_or_nothing_it_is_refused_all_the_same(
    compiler: GrammarCompiler, schema: object
) -> None:
    with pytest.raises(UnsupportedKeyword, match=r"minlength|\$ref"):
        compiled(compiler, JsonSchema(json.dumps(schema), strictness="stricter"))


def test_a_stricter_tag_says_where_in_it(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    content = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": SLIP}, "additionalProperties": False}}
    form = json.dumps({"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}})
    with pytest.raises(UnsupportedKeyword):
        compiled(compiler, StructuralTag(form))
    grammar = compiled(compiler, StructuralTag(form, strictness="stricter"))
    assert [each.pointer for each in grammar.narrowed] == ["/format/content/json_schema/properties/a/minlength"]
    assert accepts(grammar, vocabulary, "<{}>") and not accepts(grammar, vocabulary, '<{"a":"abc"}>')


PARTS: tuple[dict[str, object], ...] = (
    {"properties": {"a": {}}},
    {"anyOf": [{}, INTEGER]},
    {"allOf": [{}]},
    {"items": {}},
    {"additionalProperties": {}},
    {"propertyNames": {}},
    {"oneOf": [{}, {"type": "string"}]},
    {"not": {}},
    {"if": {}, "then": False},
    {"if": {"required": ["a"]}, "then": {}},
    {"contains": {}},
    {"contains": {}, "minContains": 0, "maxContains": 0},
    {"dependentSchemas": {"a": {}}},
)
VALUES = (0, "x", [], [0], ["x"], {}, {"a": 0}, {"a": "x", "b": [0]}, {"b": {"a": 0}})


def put(schema: dict[str, object], inner: object) -> tuple[dict[str, object], str]:
    """The schema with `inner` in place of its empty subschema, and the pointer to it."""
    for word, value in schema.items():
        if value == {}:
            return {**schema, word: inner}, f"/{word}"
        if isinstance(value, dict):
            for name, each in value.items():
                if each == {}:
                    return {**schema, word: {**value, name: inner}}, f"/{word}/{name}"
        if isinstance(value, list) and {} in value:
            at = value.index({})
            return {**schema, word: [*value[:at], inner, *value[at + 1 :]]}, f"/{word}/{at}"
    raise AssertionError(schema)


def test_leaving_out_never_lets_more_in() -> None:
    left = 0
    for outer, middle, inner in itertools.product(PARTS, PARTS, PARTS):
        deepest, place = put(inner, {"type": "string", "minlength": 3})
        below, under = put(middle, deepest)
        schema, first = put(outer, below)
        narrower = leave_out(schema, f"{first}{under}{place}/minlength")
        if narrower is None:
            continue
        left += 1
        before, after = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(narrower[0])
        assert not [value for value in VALUES if after.is_valid(value) and not before.is_valid(value)], (schema, narrower)
    assert left > 1000
