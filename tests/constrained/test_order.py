"""Keys in any order, where that is asked: each once, required ones at all, and what stays in declared order is said."""

import json
from typing import Literal

import jsonschema
import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import Generator, accepts, allowed, compiled

INTEGER = {"type": "integer"}
PAIR = {"type": "object", "properties": {"a": INTEGER, "b": {"type": "string"}}, "required": ["a"]}

CASES: dict[str, tuple[object, list[str], list[str]]] = {
    "open": (
        PAIR,
        ['{"a":1}', '{"a":1,"b":"x"}', '{"b":"x","a":1}', '{"c":[],"b":"x","d":{},"a":1}'],
        ["{}", '{"b":"x"}', '{"b":1,"a":1}', '{"a":1,"a":2}', '{"c":1}'],
    ),
    "closed": (
        {**PAIR, "additionalProperties": False},
        ['{"a":1}', '{"b":"x","a":1}'],
        ["{}", '{"b":"x"}', '{"b":"x","a":1,"c":1}', '{"b":"x","a":1,"b":"y"}'],
    ),
    "within one another, and by reference": (
        {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/pair"}, "y": {"type": "array", "items": {"$ref": "#/$defs/pair"}}},
            "required": ["y"],
            "additionalProperties": False,
            "$defs": {"pair": {**PAIR, "additionalProperties": False}},
        },
        ['{"y":[{"b":"x","a":1},{"a":1}],"x":{"b":"","a":0}}', '{"x":{"a":1},"y":[]}'],
        ['{"x":{"b":"","a":0}}', '{"y":[{"b":"x"}]}', '{"y":[],"x":{"b":"x"}}', '{"x":{"a":1},"y":[],"x":{"a":1}}'],
    ),
    "names that are no words": (
        {"type": "object", "properties": {"$free": INTEGER, 'a"\n(': INTEGER, "é": INTEGER}, "additionalProperties": False},
        ['{"é":1,"a\\"\\n(":2,"$free":3}'],
        ['{"e":1}', '{"é":1,"é":2}'],
    ),
    "strings of any character where names are known, and names in one spelling": (
        {
            "type": "object",
            "properties": {"a": INTEGER, "t": {"type": "string"}},
            "required": ["t"],
            "additionalProperties": False,
        },
        ['{"t":"\\u0007","a":1}'],
        ['{"\\u0074":"x"}', '{"t":"x","\\u0061":1}', '{"t":"x","\\u0074":"y"}', '{"t":"\\a"}'],
    ),
    "in branches": (
        {
            "anyOf": [{"type": "null"}, {**PAIR, "additionalProperties": False}, {"$ref": "#/$defs/other"}],
            "$defs": {
                "other": {
                    "type": "object",
                    "properties": {"b": {"type": "string"}, "c": {"type": "array", "items": PAIR}},
                    "required": ["c", "b"],
                    "additionalProperties": False,
                }
            },
        },
        ['{"b":"x","a":1}', '{"a":1,"b":"x"}', '{"b":"x","c":[{"b":"","a":1}]}', '{"c":[],"b":"x"}', "null"],
        ['{"b":"x"}', '{"b":"x","c":[{"b":""}]}', '{"c":[]}', "{}"],
    ),
    "in branches of which one holds": (
        {
            "required": ["k"],
            "oneOf": [
                {"properties": {"n": INTEGER, "k": {"const": "cat"}}, "required": ["n"], "type": "object"},
                {"properties": {"s": {"type": "string"}, "k": {"const": "dog"}}, "required": ["s"], "type": "object"},
            ],
        },
        ['{"k":"cat","n":1}', '{"n":1,"k":"cat"}', '{"s":"","k":"dog"}'],
        ['{"n":1}', '{"s":"","k":"cat"}', '{"k":"dog"}', '{"n":1,"k":"dog"}'],
    ),
    "beside what only the judge knows": (
        {"type": "object", "properties": {"u": {"type": "array", "uniqueItems": True}, "b": INTEGER}, "required": ["u"]},
        ['{"b":1,"u":[1,2]}'],
        ['{"b":1,"u":[1,1]}', '{"b":1}'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_keys_come_in_any_order(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    schema, good, bad = CASES[name]
    grammar = compiled(compiler, JsonSchema(json.dumps(schema), order="any"))
    assert [text for text in good if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in bad if accepts(grammar, vocabulary, text)] == []
    assert not any("declared order" in note.how for note in grammar.narrowed)


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "null"}, PAIR], "properties": {"a": {"minimum": 1}}},
        {"allOf": [PAIR, {"required": ["b"]}]},
        {"type": "object", "properties": {f"n{at}": {"type": "string", "maxLength": at} for at in range(1, 100)}},
    ],
)
def test_what_stays_in_declared_order_is_said(compiler: GrammarCompiler, schema: object) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps(schema), order="any"))
    assert any("declared order" in note.how for note in grammar.narrowed)


def test_a_required_part_that_nothing_satisfies_is_an_error_in_any_order(compiler: GrammarCompiler) -> None:
    schema = {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}, "m": {}}, "required": ["n"], "type": "object"}},
    }
    with pytest.raises(ValueError, match="Nothing satisfies"):
        compiled(compiler, JsonSchema(json.dumps(schema), order="any"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_the_mask_is_what_the_parser_takes(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str, whitespace: Literal["compact", "flexible"]
) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps(CASES[name][0]), order="any", whitespace=whitespace))
    generator = Generator(vocabulary, seed=len(name))
    matcher = grammar.matcher()
    for step in range(60):
        masked = allowed(matcher, vocabulary)
        some = [*sorted(masked)[:40], *vocabulary.by_bytes.get(b'"', ()), *range(3, 49_000, 977), *vocabulary.eos]
        some += [token for token, text in enumerate(vocabulary.tokens) if len(text) < 5 and set(text) & set(b'{}[],:"')]
        for token in some:
            taken = matcher.advance([token]) == 1
            assert taken == (token in masked), (step, vocabulary.tokens[token])
            if taken:
                matcher.rollback(1)
        token = generator.choose(sorted(masked), step)
        if token in vocabulary.eos:
            break
        assert matcher.advance([token]) == 1


def test_what_is_generated_is_valid_and_comes_to_an_end(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    ended = 0
    for name, (schema, _, _) in CASES.items():
        grammar = compiled(compiler, JsonSchema(json.dumps(schema), order="any"))
        for seed in range(4):
            output = Generator(vocabulary, seed).generate(grammar)
            ended += output is not None
            assert output is None or jsonschema.Draft202012Validator(json.loads(json.dumps(schema))).is_valid(
                json.loads(output)
            ), name
    assert ended > len(CASES)
