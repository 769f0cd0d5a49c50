"""What a grammar alone can't say is held by the judge: exactly, as early as it can be told, without walking into dead ends."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.constrained.work import Allowance, Work
from tests.constrained.corpus import Generator, accepts, allowed, compiled

INTEGER = {"type": "integer"}
ODD = {"type": "integer", "minimum": 1, "maximum": 30, "not": {"multipleOf": 2}}
PAIR = {"a": {"enum": [1, 2]}, "b": {"enum": [1, 2]}}
CLOSED = {"type": "object", "properties": PAIR, "required": ["a", "b"], "additionalProperties": False}

CASES: dict[str, tuple[object, list[str], list[str]]] = {
    "not a pattern": ({"type": "string", "not": {"pattern": "^a"}}, ['"b"', '""', '"ba"'], ['"a"', '"ab"', "1"]),
    "not a fixed string": ({"type": "string", "not": {"const": "ab"}}, ['"a"', '"abc"', '""'], ['"ab"']),
    "not these keys together": (
        {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "not": {"required": ["a", "b"]}},
        ['{"a":1}', '{"b":1}', "{}"],
        ['{"a":1,"b":1}'],
    ),
    "not by reference": (
        {"not": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": ["string", "array"]}}},
        ["1", "{}", "null"],
        ['"a"', "[]"],
    ),
    "one of two that overlap": ({"oneOf": [INTEGER, {"type": "number", "minimum": 2}]}, ["1", "2.5"], ["3", "1.5"]),
    "one of two patterns": (
        {"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}]},
        ['"xa"', '"b"'],
        ['"ab"', '"c"'],
    ),
    "unique items": (
        {"type": "array", "items": {"enum": ["ab", "abc", "x"]}, "uniqueItems": True},
        ['["ab","abc","x"]', "[]", '["abc"]'],
        ['["ab","ab"]', '["x","abc","x"]'],
    ),
    "unique numbers and objects": (
        {"type": "array", "uniqueItems": True},
        ["[1,2,true]", '[{"a":1},{"a":2}]'],
        ["[1,1]", "[1,1.0]", '[{"a":1,"b":2},{"b":2,"a":1}]'],
    ),
    "unique items behind a first that is free": (
        {"type": "array", "prefixItems": [{}, {"enum": [1, 2]}], "items": {"enum": ["a", 2]}, "uniqueItems": True},
        ['["x",2,"a"]', "[1,2]", "[true,1,2]"],
        ["[1,1]", '["x",2,2]', '["a",1,"a"]'],
    ),
    "contains": (
        {"type": "array", "items": INTEGER, "contains": {"minimum": 5}, "maxContains": 2},
        ["[1,5]", "[6,7]"],
        ["[]", "[1,2]", "[5,6,7]"],
    ),
    "contains, in few items": (
        {"type": "array", "items": {"type": ["integer", "string"]}, "contains": INTEGER, "minContains": 2, "maxItems": 3},
        ['[1,"a",2]', "[1,2]", '["a",1,2]', "[1,2,3]"],
        ["[1]", '["a",1]', '["a","b",1]', "[1,2,3,4]"],
    ),
    "a condition": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "size": INTEGER},
            "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
            "then": {"required": ["size"]},
            "else": {"properties": {"size": {"maximum": 3}}},
        },
        ['{"kind":"a","size":9}', '{"kind":"b"}', '{"kind":"b","size":2}', '{"size":1}'],
        ['{"kind":"a"}', '{"kind":"b","size":9}', '{"size":4}'],
    ),
    "what is not evaluated": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": INTEGER}}],
            "anyOf": [{"properties": {"b": INTEGER}, "required": ["b"]}, {}],
            "unevaluatedProperties": False,
        },
        ['{"a":1,"b":2}', "{}"],
        ['{"a":1,"b":"x"}', '{"c":1}'],
    ),
    "integers beyond floats": (
        {"type": "integer", "minimum": 2**60 + 1, "maximum": 2**60 + 3},
        [str(2**60 + 1), str(2**60 + 3)],
        [str(2**60), str(2**60 + 4), "1"],
    ),
    "large enumerated integers": ({"enum": [10**20, "a"]}, [str(10**20), '"a"'], [str(10**20 + 1), "1"]),
    "multiples of a large number": ({"type": "integer", "multipleOf": 123457}, ["0", "123457", "246914"], ["1", "123458"]),
    "patterns of keys that overlap": (
        {"type": "object", "patternProperties": {"^a": INTEGER, "b$": {"minimum": 5}}, "additionalProperties": False},
        ['{"ab":5}', '{"ax":1}', '{"xb":5.5}'],
        ['{"ab":1}', '{"ab":5.5}', '{"c":1}', '{"ax":"x"}'],
    ),
    "counted keys": (
        {"type": "object", "minProperties": 2},
        ['{"a":1,"b":1}'],
        ['{"a":1}', '{"a":1,"a":1}', '{"a":1,"\\u0061":1}'],
    ),
    "names of keys": (
        {"type": "object", "properties": {"abc": INTEGER}, "propertyNames": {"maxLength": 3, "pattern": "^a"}},
        ['{"abc":1}', '{"a":"x"}'],
        ['{"abcd":1}', '{"b":1}', '{"abc":""}'],
    ),
    "look-behind": ({"type": "string", "pattern": "(?<!a)b$"}, ['"b"', '"xb"'], ['"ab"', '"a"']),
    "below a reference": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"tags": {"type": "array", "uniqueItems": True}, "next": {"$ref": "#/$defs/node"}},
                    "additionalProperties": False,
                }
            },
        },
        ['{"tags":[1],"next":{"tags":[1]}}'],
        ['{"tags":[1,1]}', '{"next":{"next":{"tags":[1,2,1]}}}'],
    ),
    "a reference that recurs, beside a part about the same property": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"x": {"$ref": "#/$defs/node"}},
                    "allOf": [{"properties": {"x": {"maxProperties": 1}}}],
                    "additionalProperties": False,
                }
            },
        },
        ["{}", '{"x":{"x":{}}}'],
        ['{"x":1}', '{"x":{"y":1}}', '{"x":{"x":1}}'],
    ),
    "words that look at their neighbours only": (
        {
            "type": "object",
            "allOf": [{"properties": {"a": INTEGER}}],
            "additionalProperties": {"type": "boolean"},
            "not": {"required": ["x", "y"]},
        },
        ['{"b":true}', '{"x":true}'],
        ['{"a":1}', '{"a":1,"b":true}', '{"x":true,"y":true}'],
    ),
    "items that a condition evaluates": (
        {"type": "array", "if": {"prefixItems": [{"const": "a"}]}, "unevaluatedItems": False},
        ['["a"]', "[]"],
        ['["b"]', '["a","a"]'],
    ),
    "a list of different items": (
        {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "boolean"}], "uniqueItems": True, "items": False},
        ["[true,false]", "[true]"],
        ["[true,true]", "[true,false,1]"],
    ),
    "a closed pair": (
        {**CLOSED, "not": {"properties": {"a": {"const": 1}, "b": {"const": 1}}}},
        ['{"a":1,"b":2}'],
        ['{"a":1,"b":1}'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_schema_takes_what_it_says(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    schema, good, bad = CASES[name]
    grammar = compiled(compiler, JsonSchema(json.dumps(schema)))
    assert [text for text in good if not accepts(grammar, vocabulary, text)] == []
    assert [text for text in bad if accepts(grammar, vocabulary, text)] == []


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_valid_and_never_stuck(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    schema = CASES[name][0]
    grammar = compiled(compiler, JsonSchema(json.dumps(schema)))
    generator = Generator(vocabulary, seed=7)
    outputs = [generator.generate(grammar, limit=60) for _ in range(4)]
    for output in filter(None, outputs):
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(output)), output


@pytest.mark.parametrize("name", CASES)
def test_the_parser_takes_exactly_the_tokens_of_the_mask(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    generator, picker = Generator(vocabulary, seed=3), random.Random(4)
    matcher = compiled(compiler, JsonSchema(json.dumps(CASES[name][0]))).matcher()
    taken = 0
    for step in range(10):
        mask = allowed(matcher, vocabulary)
        for token in picker.sample(sorted(mask), min(10, len(mask))):
            assert matcher.advance([token]) == 1
            matcher.rollback(1)
        assert allowed(matcher, vocabulary) == mask
        assert matcher.can_end == (2 in mask)
        if mask <= {0, 2}:
            assert matcher.finished
            break
        chosen = generator.choose(sorted(mask - {0, 2}), step)
        taken += matcher.advance([chosen])
    matcher.rollback(taken)
    assert not matcher.can_end


def test_what_can_not_be_finished_is_refused_before(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = compiled(compiler, JsonSchema(json.dumps(CASES["a closed pair"][0]))).matcher()
    assert matcher.advance(vocabulary.encode(b'{"a":1,"b":')) > 0
    texts = {vocabulary.tokens[token] for token in allowed(matcher, vocabulary)}
    assert b"2" in texts
    assert b"1" not in texts


@pytest.mark.parametrize("text", [b'["a",', b'["a",1,', b'[1,"a",'])
def test_items_that_an_array_must_contain_keep_their_places(
    compiler: GrammarCompiler, vocabulary: Vocabulary, text: bytes
) -> None:
    matcher = compiled(compiler, JsonSchema(json.dumps(CASES["contains, in few items"][0]))).matcher()
    tokens = vocabulary.encode(text)
    assert matcher.advance(tokens) == len(tokens)
    assert not any(vocabulary.tokens[token].startswith(b'"') for token in allowed(matcher, vocabulary))


def test_after_a_prefix_the_value_is_judged(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps({"type": "string", "not": {"pattern": "a"}})), b'x: "')
    assert accepts(grammar, vocabulary, 'x: "b"') is False
    assert accepts(grammar, vocabulary, 'x: ""b"')
    assert not accepts(grammar, vocabulary, 'x: ""a"')


def test_a_number_of_a_million_digits_is_refused_before_anybody_writes_it_out(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    grammar = compiled(compiler, JsonSchema('{"type": "array", "items": {"type": "number"}, "uniqueItems": true}'))
    assert accepts(grammar, vocabulary, "[1,1e400,1e401]")
    for text in ("[1e999999,2]", "[1e99999999999999999999,2]"):
        assert not accepts(grammar, vocabulary, text)


def test_a_token_that_takes_too_many_verdicts_is_its_own_sequences_error(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    parts = [{"anyOf": [{"properties": {f"p{at}": True}}, True]} for at in range(300)]
    schema = {"allOf": parts, "unevaluatedProperties": False}
    grammar = compiled(compiler, JsonSchema(json.dumps(schema)))
    with pytest.raises(MatcherError, match="10,000 verdicts"):
        allowed(grammar.matcher(), vocabulary)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_allowance_goes_with_the_cursor_not_with_the_thread(threads: int) -> None:
    work = Work()
    allowance, other = Allowance(work), Allowance(work)

    def spend() -> None:
        with allowance:
            for _ in range(4_000):
                work.spend()

    with ThreadPoolExecutor(threads) as pool:
        pool.submit(spend).result()
        with other:
            work.spend()
        pool.submit(spend).result()
        with pytest.raises(MatcherError):
            pool.submit(spend).result()
        allowance.renew()
        pool.submit(spend).result()


@pytest.mark.parametrize(
    ("schema", "text", "stuck"),
    [
        ({"type": "array", "items": INTEGER, "uniqueItems": True}, b"[0,", {b"0"}),
        (
            {"properties": {"a": {"oneOf": [{**INTEGER, "multipleOf": 2}, {**INTEGER, "multipleOf": 3}]}, "b": {}}},
            b'{"a":-',
            {b"0"},
        ),
        ({"type": "array", "items": ODD}, b"[", {b"4", b"6", b"8"}),
        ({"properties": {"a": ODD}, "type": "object"}, b'{"a":', {b"4", b"6", b"8"}),
        (ODD, b"", {b"4", b"6", b"8"}),
        ({"allOf": [{"not": {"multipleOf": 2}}, {**INTEGER, "maximum": 30, "minimum": 1}]}, b"", {b"4", b"6", b"8"}),
    ],
)
def test_a_number_that_no_digit_may_follow_is_refused_before_it_is_stuck(
    compiler: GrammarCompiler, vocabulary: Vocabulary, schema: object, text: bytes, stuck: set[bytes]
) -> None:
    matcher = compiled(compiler, JsonSchema(json.dumps(schema))).matcher()
    tokens = vocabulary.encode(text)
    assert matcher.advance(tokens) == len(tokens)
    found = {vocabulary.tokens[token] for token in allowed(matcher, vocabulary)}
    assert not found & stuck and b"1" in found


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"type": "number", "multipleOf": 1e-300}, {"0": False, "12": False, "1.5": False}),
        ({"type": "integer", "not": {"minimum": 2}}, {"-1": False, "1": True, "0": True}),
        ({"type": "integer", "not": {"minimum": 20}, "minimum": 3}, {"3": True, "1": False, "19": True}),
    ],
)
def test_a_value_is_finished_where_nothing_can_follow(
    compiler: GrammarCompiler, vocabulary: Vocabulary, schema: dict[str, object], texts: dict[str, bool]
) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps(schema)))
    for text, finished in texts.items():
        matcher = grammar.matcher()
        assert matcher.advance(vocabulary.encode(text.encode())) == len(vocabulary.encode(text.encode()))
        assert matcher.finished == finished, text
        assert matcher.finished == (not [each for each in allowed(matcher, vocabulary) if vocabulary.tokens[each]])


def test_a_number_that_may_not_stand_and_can_not_go_on_is_refused_by_the_parser_too(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    matcher = compiled(compiler, JsonSchema(json.dumps(ODD))).matcher()
    assert matcher.advance(vocabulary.encode(b"6")) == 0
    assert matcher.advance(vocabulary.encode(b"7")) == 1
    assert matcher.can_end and matcher.finished


STUCK: dict[str, object] = {
    "multiples two digits ahead": {**INTEGER, "minimum": 5, "maximum": 5000, "oneOf": [{"multipleOf": 7}, {"multipleOf": 11}]},
    "a name that nothing may have": {
        "type": "object",
        "properties": {"": True},
        "additionalProperties": False,
        "propertyNames": {"pattern": "a(?=b)"},
    },
    "a value that can not be": {"type": "object", "patternProperties": {"(?!a)": {"oneOf": [{}, {"type": "object"}]}}},
    "a value of no type": {
        "properties": {"ab": {"type": "array"}},
        "if": {"enum": []},
        "else": {"type": "object", "required": ["b"], "patternProperties": {"a(?=b)": INTEGER}},
    },
    "no room for more items": {
        "type": "array",
        "items": {"allOf": [{"enum": [{"c": "d"}]}]},
        "contains": True,
        "maxContains": 2,
    },
    "numbers of one sign": {
        "type": "object",
        "patternProperties": {"^[ab]+$": True, "a|b": {"if": {"minimum": -3}, "then": {"type": ["object"]}}},
    },
}


@pytest.mark.parametrize("name", STUCK)
def test_nothing_is_begun_that_can_not_be_brought_to_an_end(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps(STUCK[name]), order="any"))
    for seed in range(8):
        output = Generator(vocabulary, seed).generate(grammar, limit=40)
        assert output is None or jsonschema.Draft202012Validator(STUCK[name]).is_valid(json.loads(output)), output
