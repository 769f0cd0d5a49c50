"""`close="steer"` where grammars, schemas and tags refer to themselves or hold free text: every output ends within its limit."""

import json
import random

import jsonschema
import pytest

from branchpoint.constrained.cfg import Alt, Cfg, Chars, Lit, Part, Ref, Rep, Seq, prune
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.completion import check_length
from branchpoint.constrained.engines.steered import Limit, SteerableGrammar
from branchpoint.constrained.errors import TooFewTokens
from branchpoint.constrained.spec import Constraint, Ebnf, JsonSchema, StructuralTag
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.derivation import Derivation, random_grammar
from tests.constrained.test_steering import Writer, steerable

TREE: dict[str, object] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                "name": {"type": "string", "pattern": "^[a-z]{2,}-[0-9]{3}$"},
            },
            "required": ["left", "right", "name"],
            "additionalProperties": False,
        }
    },
}
TERM: dict[str, object] = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"op": {"const": "add"}, "of": {"type": "array", "items": {"$ref": "#"}, "minItems": 2}},
            "required": ["op", "of"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"op": {"const": "is"}, "value": {"type": "integer", "multipleOf": 7, "minimum": 100}},
            "required": ["op", "value"],
            "additionalProperties": False,
        },
    ]
}
SCHEMAS = {"tree": TREE, "term": TERM}
CALL = {
    "type": "tag",
    "begin": "<call>",
    "content": {"type": "json_schema", "json_schema": {**TREE, "type": "object"}},
    "end": "</call>",
}
TAGS: dict[str, object] = {
    "auto": {"type": "triggered_tags", "triggers": ["<call"], "tags": [CALL]},
    "free text before": {
        "type": "sequence",
        "elements": [
            {"type": "tag", "begin": "<think>", "content": {"type": "any_text", "excludes": ["<call"]}, "end": "</think>"},
            {"type": "triggered_tags", "triggers": ["<call"], "tags": [CALL], "at_least_one": True},
        ],
    },
    "one of two ends": {"type": "tag", "begin": "[", "content": {"type": "any_text"}, "end": ["[/long end]", "]]"]},
    "grammar": {
        "type": "tag",
        "begin": "<e>",
        "content": {"type": "grammar", "grammar": 'root ::= "(" root ")" | root "+" root | [0-9]{2,}'},
        "end": "</e>",
    },
    "separated": {
        "type": "tags_with_separator",
        "separator": ", ",
        "at_least_one": True,
        "tags": [{"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{4,}"}, "end": "</n>"}, CALL],
    },
}


def check_ends(grammar: SteerableGrammar, vocabulary: Vocabulary, seed: int, more: tuple[int, ...]) -> list[str]:
    """Outputs in limits that leave some tokens more than the least; each is whole."""
    assert grammar.way is not None
    texts = []
    for room in more:
        limit = len(grammar.way) + room
        output, ends = Writer(vocabulary, seed).write(grammar.within(Limit(limit, 4096)).matcher(), limit)
        assert ends and len(output) <= limit, (room, vocabulary.text(output))
        texts.append(vocabulary.text(output).decode())
    return texts


def written(part: Part) -> str:
    """A part in GBNF."""
    match part:
        case Lit(text):
            return json.dumps(text)
        case Chars(ranges):
            return "[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges) + "]"
        case Ref(name):
            return name
        case Seq(parts):
            return "(" + (" ".join(map(written, parts)) or '""') + ")"
        case Alt(branches):
            return "(" + " | ".join(map(written, branches)) + ")"
        case Rep(body, low, high):
            return f"({written(body)}){{{low},{'' if high is None else high}}}"
    raise AssertionError("no such part in a grammar that was made here")


def as_gbnf(grammar: Cfg) -> Ebnf:
    rules = {"root": Ref(grammar.start), **grammar.rules}
    return Ebnf("\n".join(f"{name} ::= {written(part)}" for name, part in rules.items()))


@pytest.mark.parametrize("seed", range(12))
def test_outputs_of_any_recursive_grammar_end_and_the_least_is_known(
    compiler: GrammarCompiler, vocabulary: Vocabulary, seed: int
) -> None:
    grammar = prune(random_grammar(random.Random(seed)))
    steered = steerable(compiler, as_gbnf(grammar))
    for text in check_ends(steered, vocabulary, seed, (0, 1, 4)):
        assert Derivation(grammar, text).holds(), text
    assert steered.way is not None
    if 0 < len(steered.way) < 4:
        with pytest.raises(TooFewTokens):
            check_length(steered.matcher(), len(steered.way) - 1, vocabulary.size)


@pytest.mark.parametrize("name", SCHEMAS)
def test_values_of_schemas_that_refer_to_themselves_end(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    judge = jsonschema.Draft202012Validator(SCHEMAS[name])
    for text in check_ends(steerable(compiler, JsonSchema(json.dumps(SCHEMAS[name]))), vocabulary, 3, (0, 2, 9, 40, 90)):
        assert judge.is_valid(json.loads(text)), text


@pytest.mark.parametrize("name", TAGS)
def test_tags_end_within_any_limit_whatever_text_stands_between(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str
) -> None:
    grammar = steerable(compiler, StructuralTag(json.dumps({"format": TAGS[name]})))
    for text in check_ends(grammar, vocabulary, 2, (0, 2, 9, 40, 90)):
        assert text.count("<call>") == text.count("</call>") and text.count("<think>") == text.count("</think>"), text


@pytest.mark.parametrize(
    ("constraint", "begun", "rest"),
    [
        (JsonSchema(json.dumps(TREE)), '{"left":' * 20, "null"),
        (JsonSchema(json.dumps(TERM)), '{"op":"add","of":[' * 12, '{"op":"is","value":105}'),
        (Ebnf('root ::= "(" root ")" | "[" root "]" | "x"'), "([" * 60, "x])"),
        (StructuralTag(json.dumps({"format": TAGS["auto"]})), 'Well: <call>{"left":{"left":', "null"),
        (StructuralTag(json.dumps({"format": TAGS["free text before"]})), "<think>Let me see. 1 < 2, </", "think><call>"),
        (StructuralTag(json.dumps({"format": TAGS["one of two ends"]})), "[some [/long en", "]]"),
    ],
)
def test_where_nothing_is_to_spare_the_whole_rest_is_written(
    compiler: GrammarCompiler, vocabulary: Vocabulary, constraint: Constraint, begun: str, rest: str
) -> None:
    grammar = steerable(compiler, constraint)
    tokens = vocabulary.encode(begun.encode())
    matcher = grammar.within(Limit(4096, 4096)).matcher()
    assert matcher.advance(tokens) == len(tokens)
    least = len(matcher.way or ())
    tight = grammar.within(Limit(len(tokens) + least, 4096)).matcher()
    assert least and tight.advance(tokens) == len(tokens)
    output, ends = Writer(vocabulary, 1).write(tight, least)
    assert ends and vocabulary.text(output).decode().startswith(rest), vocabulary.text(output)


def test_a_part_that_asks_for_more_than_is_left_is_not_begun_far_from_the_limit_either(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    grammar = steerable(compiler, Ebnf('root ::= "short." | "L" ([a-z] [0-9] " "){300} "."'))
    assert not grammar.within(Limit(200, 4096)).matcher().allows(vocabulary.by_bytes[b"L"][0])
    assert grammar.within(Limit(2000, 4096)).matcher().allows(vocabulary.by_bytes[b"L"][0])
