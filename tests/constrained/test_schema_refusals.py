"""What is refused of a schema, with its pointer or its numbers; and what pydantic writes, which is not."""

import itertools
import json
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import EmptyLanguage, GrammarError, InvalidSchema, LimitExceeded, UnsupportedKeyword
from branchpoint.constrained.inhabited import prune_uninhabited
from branchpoint.constrained.normalise import normalise_schema
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import accepts, compiled

INTEGER = {"type": "integer"}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "keyword", "pointer"),
    [
        ({"properties": {"a/b": {"minlength": 3}}}, "minlength", "/properties/a~1b/minlength"),
        ({"items": [{}, {"extends": {}}]}, "extends", "/items/1/extends"),
        ({"$ref": "http://example.com/x"}, "$ref", "/$ref"),
        ({"items": {"$id": "x", "$ref": "a"}}, "$id", "/items/$id"),
        ({"min_items": 1}, "min_items", "/min_items"),
    ],
)
def test_a_keyword_that_would_be_ignored_is_refused_by_name(
    compiler: GrammarCompiler, schema: object, keyword: str, pointer: str
) -> None:
    with pytest.raises(UnsupportedKeyword) as refused:
        compiled(compiler, JsonSchema(json.dumps(schema)))
    assert (refused.value.keyword, refused.value.pointer) == (keyword, pointer)
    assert keyword in str(refused.value)


def test_an_unused_definition_does_no_harm() -> None:
    assert normalise_schema({"type": "integer", "$defs": {"x": {"not": {}}}}) == {"type": "integer"}


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"not": {}},
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


def test_errors_of_schemas_are_value_errors() -> None:
    assert issubclass(InvalidSchema, ValueError)
    assert issubclass(UnsupportedKeyword, GrammarError)


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
    grammar = compiled(compiler, JsonSchema(json.dumps(Owner.model_json_schema())))
    assert accepts(grammar, vocabulary, good)
    assert not any(accepts(grammar, vocabulary, text) for text in bad)


def test_a_reference_that_comes_back_to_the_same_value_is_named(compiler: GrammarCompiler) -> None:
    node = {"type": "object", "dependentSchemas": {"a": {"$ref": "#/$defs/node"}}}
    error = compiler.compile(JsonSchema(json.dumps({"$ref": "#/$defs/node", "$defs": {"node": node}}))).exception(30)
    assert isinstance(error, UnsupportedKeyword) and error.keyword == "$ref"
