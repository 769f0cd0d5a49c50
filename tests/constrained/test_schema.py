"""No keyword of a schema is ignored in silence: it acts, is an annotation, or is refused with its JSON pointer."""

import itertools
import json
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import EmptyLanguage, GrammarError, InvalidSchema, LimitExceeded, UnsupportedKeyword
from branchpoint.constrained.inhabited import prune_uninhabited
from branchpoint.constrained.schema import normalise_schema
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import accepts, compiled


def check(
    compiler: GrammarCompiler,
    vocabulary: Vocabulary,
    schema: object,
    good: list[str],
    bad: list[str],
    whitespace: Literal["compact", "flexible"] = "compact",
) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps(schema), whitespace=whitespace))
    assert [text for text in good if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in bad if accepts(grammar, vocabulary, text)] == []


INTEGER = {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}

CASES: dict[str, tuple[object, list[str], list[str]]] = {
    "true": (True, ['{"a":[1,{}]}', "null"], ["nul", ""]),
    "additional properties are open by default": (
        {"properties": {"a": INTEGER}, "type": "object"},
        ["{}", '{"a":1,"b":"x"}'],
        ['{"a":"x"}'],
    ),
    "declared order": (
        {"properties": {"b": INTEGER, "a": INTEGER}, "required": ["a", "b"], "type": "object"},
        ['{"b":1,"a":2}'],
        ['{"a":2,"b":1}'],
    ),
    "no escaped key slips past a declared one": (
        {"type": "object", "properties": {"a": INTEGER, "/": INTEGER}},
        ['{"b":"x"}'],
        ['{"\\u0061":"x"}', '{"\\/":"x"}', '{"a":1,"\\u0061":"x"}'],
    ),
    "length counts characters": ({"type": "string", "minLength": 2, "maxLength": 2}, ['"é😀"', '"\\n\\n"'], ['"a"', '"abc"']),
    "pattern searches": ({"type": "string", "pattern": "a.c"}, ['"xabcx"'], ['"ac"']),
    "pattern and length": (
        {"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 3},
        ['"aa"'],
        ['"a"', '"aaaa"', '"ab"'],
    ),
    "enum and type": ({"type": "integer", "enum": [1, "a", 2]}, ["1", "2"], ['"a"', "3"]),
    "reference with siblings": (
        {"$ref": "#/$defs/i", "minimum": 5, "$defs": {"i": {"maximum": 9, **INTEGER}}},
        ["5", "9"],
        ["4", "10"],
    ),
    "anchor": ({"$ref": "#i", "$defs": {"x": {"$anchor": "i", **INTEGER}}}, ["5"], ['"a"']),
    "reference into a property": (
        {"type": "object", "properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}, "additionalProperties": False},
        ['{"a":1,"b":2}'],
        ['{"b":"x"}'],
    ),
    "nested definitions": (
        {"$ref": "#/$defs/o/$defs/i", "$defs": {"o": {"$defs": {"i": INTEGER}}}},
        ["5"],
        ['"a"'],
    ),
    "draft 7 tuples": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [INTEGER], "additionalItems": False, "type": "array"},
        ["[1]", "[]"],
        ["[1,2]", '["a"]'],
    ),
    "draft 4 bounds": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True, **INTEGER},
        ["2"],
        ["1"],
    ),
    "annotations say nothing": (
        {
            "title": "T",
            "description": "d",
            "default": 1,
            "examples": ["x"],
            "x-guidance": {"lenient": True},
            "$comment": "c",
            "format": "int32",
            "deprecated": True,
            **INTEGER,
        },
        ["5"],
        ['"5"'],
    ),
    "an unknown format is an annotation": ({"type": "string", "format": "phone"}, ['"x"'], ["1"]),
    "neutral values of refused keywords": (
        {"type": "array", "uniqueItems": False, "items": {"nullable": False, "unevaluatedProperties": True, **INTEGER}},
        ["[1,1]"],
        ['["a"]'],
    ),
    "a property named like a keyword": (
        {"type": "object", "properties": {"not": INTEGER, "x-a": INTEGER}, "required": ["not", "x-a"]},
        ['{"not":1,"x-a":2}'],
        ['{"not":"a","x-a":2}', "{}"],
    ),
    "data that looks like a schema": ({"const": {"not": {"x-a": 1}}}, ['{"not":{"x-a":1}}'], ['{"not":{}}']),
    "an optional part without an end": (
        {
            "$ref": "#/$defs/inf",
            "$defs": {"inf": {"type": ["object", "null"], "required": ["a"], "properties": {"a": {"$ref": "#/$defs/inf"}}}},
        },
        ["null", '{"a":null}'],
        [],
    ),
    "a list that can't be filled is empty": (
        {
            "type": "array",
            "items": {"$ref": "#/$defs/x"},
            "$defs": {"x": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/x"}}},
        },
        ["[]"],
        ["[[]]"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_schema_takes_what_it_says(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    check(compiler, vocabulary, *CASES[name])


def test_whitespace_is_compact_or_one_at_most(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}
    spaced = ['{"a": 1}', '{\n"a" :1 }']
    check(compiler, vocabulary, schema, ['{"a":1}'], [*spaced, ' {"a":1}', '{"a":1} '])
    check(compiler, vocabulary, schema, ['{"a":1}', *spaced], ['{  "a":1}', ' {"a":1}', '{"a":1} '], whitespace="flexible")


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"not": {}}, "not", "/not"),
        ({"properties": {"a/b": {"minlength": 3}}}, "minlength", "/properties/a~1b/minlength"),
        ({"items": [{}, {"if": {}}]}, "if", "/items/1/if"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"uniqueItems": True}}}, "uniqueItems", "/$defs/x/uniqueItems"),
        ({"nullable": True}, "nullable", "/nullable"),
        ({"minProperties": 2}, "minProperties", "/minProperties"),
        ({"$ref": "http://example.com/x"}, "$ref", "/$ref"),
        ({"items": {"$id": "x"}}, "$id", "/items/$id"),
        ({"maximum": 2**60}, "maximum", "/maximum"),
        ({"enum": [1, {"a": [10**20]}]}, "enum", "/enum"),
        ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, "oneOf", "/properties/a/oneOf"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "pattern", "/properties/a/pattern"),
        (
            {"type": "object", "patternProperties": {"^a": INTEGER, "b$": {"minimum": 5}}},
            "patternProperties",
            "/patternProperties",
        ),
        ({"type": "object", "properties": {"a": {}}, "maxProperties": 1}, "maxProperties", "/maxProperties"),
    ],
)
def test_a_keyword_that_would_be_ignored_is_refused_by_name(
    compiler: GrammarCompiler, schema: object, keyword: str, pointer: str
) -> None:
    with pytest.raises(UnsupportedKeyword) as refused:
        compiled(compiler, JsonSchema(json.dumps(schema)))
    assert (refused.value.keyword, refused.value.pointer) == (keyword, pointer)
    assert keyword in str(refused.value)


ONE_OF: list[tuple[list[object], list[str], list[str]]] = [
    ([{"const": "auto"}, INTEGER], ['"auto"', "5"], ['"x"']),
    ([{"enum": [1, 2]}, {"enum": [3.0, "a"]}], ["1", "3", '"a"'], ["4"]),
    ([{"$ref": "#/$defs/i"}, {"type": ["string", "null"]}], ["1", "null"], ["true"]),
]


@pytest.mark.parametrize("which", range(len(ONE_OF)))
def test_branches_that_exclude_one_another_are_followed(compiler: GrammarCompiler, vocabulary: Vocabulary, which: int) -> None:
    branches, good, bad = ONE_OF[which]
    check(compiler, vocabulary, {"oneOf": branches, "$defs": {"i": INTEGER}}, good, bad)


@pytest.mark.parametrize(
    "branches", [[INTEGER, {"type": "number"}], [{"enum": [1, 2]}, {"enum": [2.0]}], [{"minimum": 1}, {"type": "string"}]]
)
def test_branches_that_may_hold_together_are_refused(compiler: GrammarCompiler, branches: list[object]) -> None:
    with pytest.raises(UnsupportedKeyword, match="oneOf"):
        compiled(compiler, JsonSchema(json.dumps({"oneOf": branches})))


def test_an_unused_definition_does_no_harm() -> None:
    assert normalise_schema({"type": "integer", "$defs": {"x": {"not": {}}}}) == {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        {"$ref": "#/$defs/node", "$defs": {"node": {**NODE, "required": ["next"]}}},
        {"enum": []},
        {"minimum": 3, "maximum": 2, **INTEGER},
        {"allOf": [INTEGER, {"type": "string"}]},
        {"allOf": [{"$ref": "#"}]},
        {"required": ["a"], "type": "object", "additionalProperties": False},
        {"anyOf": [False, False]},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    ],
)
def test_a_schema_that_nothing_satisfies_is_refused(compiler: GrammarCompiler, schema: object) -> None:
    with pytest.raises(EmptyLanguage):
        compiled(compiler, JsonSchema(json.dumps(schema)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "5",
        '"a"',
        "nul",
        '{"a":NaN}',
        '{"type":"foo"}',
        '{"type":5}',
        '{"properties":5}',
        '{"required":"a"}',
        '{"anyOf":{}}',
        '{"items":3}',
        '{"$ref":5}',
        '{"$ref":"#/$defs/a"}',
        '{"minLength":-1}',
        '{"enum":1}',
        '{"format":5}',
        '{"$schema":5}',
        '{"$defs":[]}',
        '{"pattern":"("}',
        '{"minLength":' + "9" * 5000 + "}",
        '{"const":"\\ud800"}',
        '{"patternProperties":{"(":{}}}',
    ],
)
def test_what_is_no_schema_is_refused(compiler: GrammarCompiler, text: str) -> None:
    with pytest.raises(GrammarError) as refused:
        compiled(compiler, JsonSchema(text))
    assert not isinstance(refused.value, EmptyLanguage)
    assert len(str(refused.value)) < 800


@pytest.mark.parametrize("text", ['{"items":' * 20_000 + "{}" + "}" * 20_000, "[" * 20_000, '{"a":"' + "x" * (1 << 20) + '"}'])
def test_a_schema_beyond_the_limits_is_refused_with_the_numbers(compiler: GrammarCompiler, text: str) -> None:
    with pytest.raises(LimitExceeded, match=r"got [\d,]+"):
        compiled(compiler, JsonSchema(text))


def test_tangled_references_are_given_up() -> None:
    names = [f"d{number}" for number in range(3000)]
    definitions: dict[str, object] = {
        name: {"allOf": [{"$ref": f"#/$defs/{after}"}]} for name, after in itertools.pairwise(names)
    }
    definitions[names[-1]] = {"type": "integer"}
    with pytest.raises(LimitExceeded):
        prune_uninhabited({"$ref": "#/$defs/d0", "$defs": definitions})


def test_outlines_does_not_take_schemas(compiler: GrammarCompiler) -> None:
    with pytest.raises(UnsupportedKeyword):
        compiled(compiler, JsonSchema("{}", engine="outlines"))


def test_what_is_narrowed_is_said(compiler: GrammarCompiler) -> None:
    assert compiled(compiler, JsonSchema(json.dumps({"properties": {"a": INTEGER}}))).narrowed
    assert (
        compiled(compiler, JsonSchema(json.dumps({"properties": {"a": INTEGER}, "additionalProperties": False}))).narrowed == ()
    )


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    """A docstring becomes a description."""

    kind: Literal["dog"]
    name: str = Field(min_length=1, max_length=10, pattern="^[A-Z]")


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    pair: tuple[int, str]
    friends: list["Owner"] = Field(default_factory=list, max_length=2)
    score: float | None = None
    tags: dict[str, bool] = {}


def test_what_pydantic_writes_is_understood(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    good = (
        '{"pet":{"kind":"dog","name":"Rex"},"pair":[1,"x"],'
        '"friends":[{"pet":{"kind":"cat","lives":9},"pair":[0,""]}],"score":1.5}'
    )
    Owner.model_validate_json(good)
    bad = [
        '{"pet":{"kind":"dog","name":"rex"},"pair":[1,"x"]}',
        '{"pet":{"kind":"cat","lives":10},"pair":[1,"x"]}',
        '{"pair":[1,"x"]}',
    ]
    check(compiler, vocabulary, Owner.model_json_schema(), [good], bad)


def test_errors_of_schemas_are_value_errors() -> None:
    assert issubclass(InvalidSchema, ValueError)
    assert issubclass(UnsupportedKeyword, GrammarError)
