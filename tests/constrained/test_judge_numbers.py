"""What is said of the first digits of a number agrees with all the numbers that begin with them, gone through one by one."""

import itertools
import json
import random
from collections.abc import Iterator

import jsonschema_rs
import pytest

from branchpoint.constrained import judge_numbers
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.definitions import Definitions
from branchpoint.constrained.judge_numbers import NumberSets
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import accepts, compiled

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def schema(source: random.Random, depth: int) -> dict[str, object]:
    """A schema about numbers, its multiples small enough for thousands of integers to show them all."""
    found: dict[str, object] = {word: source.choice((source.randint(-60, 900), 2.5)) for word in BOUNDS if source.random() < 0.2}
    if source.random() < 0.5:
        found["multipleOf"] = source.choice((1, 2, 3, 5, 7, 10, 0.5, 1.5, 0.1))
    if source.random() < 0.2:
        found["enum"] = [source.randint(-99, 99), 2.5, "a", None, True, 7.0]
    if source.random() < 0.3:
        found["type"] = source.choice(("integer", "number", "string", ["integer", "null"]))
    if not depth:
        return found
    parts = [schema(source, depth - 1) for _ in range(3)]
    kind = source.choice(("not", "if", "anyOf", "oneOf", "allOf", "$ref"))
    if kind == "$ref":
        return found | {"$ref": "#/$defs/x"}
    if kind == "if":
        return found | dict(zip(("if", "then", "else"), parts, strict=True))
    return found | {kind: parts[0] if kind == "not" else parts}


def beginning(text: str) -> Iterator[int]:
    """The integers that begin with `text`, up to three digits longer."""
    digits = text.lstrip("-")
    for more in range(4 if digits != "0" else 1):
        first = int(digits) * 10**more
        yield from (-each if text.startswith("-") else each for each in range(first, first + 10**more))


@pytest.mark.parametrize("seed", range(6))
def test_digits_are_refused_exactly_where_no_number_that_begins_with_them_is_valid(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(5):
        root = {"type": "integer", "allOf": [schema(source, 2)], "$defs": {"x": schema(source, 0)}}
        validator = jsonschema_rs.Draft202012Validator(root)
        numbers = NumberSets(Definitions(root["$defs"]))
        for _ in range(5):
            text = source.choice(("", "-")) + str(source.choice((source.randint(0, 9), source.randint(10, 999))))
            said = numbers.verdict(root, text.encode())
            assert (said is not False) == any(map(validator.is_valid, beginning(text))), (root, text)


@pytest.mark.parametrize("seed", range(3))
def test_where_fractions_may_follow_nothing_is_said_that_they_contradict(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(12):
        root = schema(source, 2) | {"$defs": {"x": schema(source, 0)}}
        validator = jsonschema_rs.Draft202012Validator(root)
        numbers = NumberSets(Definitions({"x": root["$defs"]["x"]}))
        for sign in ("", "-"):
            text = sign + str(source.randint(1, 99))
            fractions = [json.loads(f"{text}{rest}") for rest in (".25", ".3", "7.125", "e-1", "5e-3", "000.77")]
            valid = {validator.is_valid(each) for each in itertools.chain(fractions, itertools.islice(beginning(text), 111))}
            said = numbers.verdict(root, text.encode())
            assert said is None or valid == {said}, (root, text)


def test_what_would_take_too_large_a_table_is_left_open() -> None:
    large = {"type": "integer", "oneOf": [{"multipleOf": 99991}, {"multipleOf": 99989}]}
    loop = {"$ref": "#/$defs/x"}
    assert NumberSets(Definitions({})).verdict(large, b"7") is None
    assert NumberSets(Definitions({"x": loop})).verdict(loop, b"7") is None


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (2**53 + 1, "9007199254740992"),
        (123456789.12345679, "123456789.1234568"),
        (5e-324, "0"),
        ([-(2**53) - 1], "[-9007199254740992]"),
        ({"a": 2**60 + 1}, '{"a":1152921504606846976}'),
    ],
)
def test_fixed_numbers_of_many_digits_are_held_to_the_last(
    compiler: GrammarCompiler, vocabulary: Vocabulary, value: object, other: str
) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps({"enum": [value, "x"]})))
    assert accepts(grammar, vocabulary, json.dumps(value, separators=(",", ":")))
    assert not accepts(grammar, vocabulary, other)


def test_a_definition_that_nothing_satisfies_only_bars_what_refers_to_it(
    compiler: GrammarCompiler, vocabulary: Vocabulary
) -> None:
    never = {"type": "array", "not": {"anyOf": [{"required": ["a"]}]}}
    grammar = compiled(compiler, JsonSchema(json.dumps({"properties": {"c": {"$ref": "#/$defs/x"}}, "$defs": {"x": never}})))
    assert accepts(grammar, vocabulary, "[]") and accepts(grammar, vocabulary, '{"d":1}')
    assert not accepts(grammar, vocabulary, '{"c":[]}')


def test_lengths_are_passed_over_only_where_they_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(4)

    def told() -> list[object]:
        sets = [NumberSets(Definitions({})) for _ in schemas]
        return [numbers.verdict(each, text) for numbers, each in zip(sets, schemas, strict=True) for text in texts]

    def large() -> int:
        return source.choice((-1, 1)) * source.randint(1, 10 ** source.randint(1, 30))

    schemas = [
        {"multipleOf": source.choice((1, 7, 20)), "type": "integer", source.choice(BOUNDS): large(), "not": {"minimum": large()}}
        | ({"anyOf": [{"maximum": large()}, {"enum": [large(), large()]}]} if source.random() < 0.5 else {})
        for _ in range(60)
    ]
    texts = [sign + str(abs(large())).encode() for sign in (b"", b"-") for _ in range(20)]
    leaping = told()
    monkeypatch.setattr(judge_numbers._NumberSet, "_further", lambda *_: 1)
    assert told() == leaping
    assert {None, False} <= set(leaping)


def test_bounds_of_thousands_of_digits_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, asked = NumberSets(Definitions({})), list[int]()
    further = judge_numbers._NumberSet._further
    monkeypatch.setattr(judge_numbers._NumberSet, "_further", lambda *args: asked.append(1) or further(*args))
    assert numbers.verdict({"type": "integer", "minimum": 10**4200, "multipleOf": 7}, b"1") is None
    assert numbers.verdict({"type": "integer", "minimum": 10**4200, "multipleOf": 7}, b"-1") is False
    assert len(asked) < 100
