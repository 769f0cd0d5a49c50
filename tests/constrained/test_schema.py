"""No keyword of a schema is ignored in silence: it acts, is an annotation, or is refused with its JSON pointer."""

import json
from typing import Literal

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
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
    "words of nobody's draft say nothing": ({"type": "integer", "sortIndex": 3, "name": {"not": 1}, "_not": {}}, ["5"], ['"5"']),
    "references beside the definitions": (
        {
            "$ref": "#/components/sch%20emas/X~1",
            "components": {
                "sch emas": {
                    "X/": {
                        "type": "object",
                        "properties": {"n": {"$ref": "#/components/sch%20emas/X~1"}},
                        "additionalProperties": False,
                    }
                }
            },
        },
        ['{"n":{"n":{}}}'],
        ['{"n":1}'],
    ),
    "names of parts": (
        {"$id": "http://a/b", "type": "object", "properties": {"a": {"$id": "c", **INTEGER}}},
        ['{"a":1}'],
        ['{"a":""}'],
    ),
    "odd names of definitions": ({"$ref": "#/$defs/a%2520b", "$defs": {"a%20b": INTEGER}}, ["5"], ['"a"']),
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


def test_whitespace_is_compact_or_one_space_or_one_indented_line(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": False}
    spaced = ['{"a": 1}', '{\n"a" :1 }', '{\n    "a": 1\n}']
    check(compiler, vocabulary, schema, ['{"a":1}'], [*spaced, ' {"a":1}', '{"a":1} '])
    check(
        compiler,
        vocabulary,
        schema,
        ['{"a":1}', *spaced],
        ['{  "a":1}', '{\n\n"a":1}', f'{{\n{" " * 33}"a":1}}', ' {"a":1}', '{"a":1} '],
        whitespace="flexible",
    )


ONE_OF: list[tuple[list[object], list[str], list[str]]] = [
    ([{"const": "auto"}, INTEGER], ['"auto"', "5"], ['"x"']),
    ([{"enum": [1, 2]}, {"enum": [3.0, "a"]}], ["1", "3", '"a"'], ["4"]),
    ([{"$ref": "#/$defs/i"}, {"type": ["string", "null"]}], ["1", "null"], ["true"]),
]


@pytest.mark.parametrize("which", range(len(ONE_OF)))
def test_branches_that_exclude_one_another_are_followed(compiler: GrammarCompiler, vocabulary: Vocabulary, which: int) -> None:
    branches, good, bad = ONE_OF[which]
    check(compiler, vocabulary, {"oneOf": branches, "$defs": {"i": INTEGER}}, good, bad)


def test_lists_of_texts_that_hold_together_compile_whatever_their_length(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    listed = ["plain", "two words", "a.b", "ü", "plus+", "tail"]
    many = {f"p{at}": {"$ref": "#/$defs/one"} for at in range(30)}
    schema = {
        "allOf": [
            {"$ref": "#/$defs/many"},
            {"properties": {"p0": {"enum": listed[1:]}, "n": {"type": "integer", "enum": ["x", 3]}}},
        ],
        "$defs": {"one": {"enum": [*listed, "more", "and more"]}, "many": {"type": "object", "properties": many}},
        "unevaluatedProperties": False,
    }
    grammar = compiled(compiler, JsonSchema(json.dumps(schema)))
    for value, fits in (("two words", True), ("a.b", True), ("ü", True), ("tail", True), ("plain", False), ("axb", False)):
        assert accepts(grammar, vocabulary, json.dumps({"p0": value}, ensure_ascii=False, separators=(",", ":"))) == fits
    assert accepts(grammar, vocabulary, '{"p1":"and more","n":3}')
    assert not accepts(grammar, vocabulary, '{"n":"x"}')
