"""What a JSON value that is cut anywhere still needs, read from its schema alone."""

import json

import jsonschema
import pytest

from branchpoint.constrained.guide import Guide
from branchpoint.constrained.schema import Schema

NODE: Schema = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "type": "object",
            "properties": {"l": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}, "r": {"$ref": "#/$defs/l"}},
            "required": ["l", "r"],
        },
        "l": {"type": "array", "items": {"$ref": "#/$defs/n"}},
    },
}
PETS: Schema = {
    "oneOf": [
        {"properties": {"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 3}}, "required": ["kind", "lives"]},
        {
            "properties": {"kind": {"enum": ["dog", "wolf"]}, "name": {"type": "string", "minLength": 2}},
            "required": ["kind", "name"],
        },
    ],
    "type": "object",
}
CONDITION: Schema = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "null"}, "c": {"type": "boolean"}},
    "required": ["a"],
    "if": {"properties": {"a": {"const": "x"}}},
    "then": {"required": ["b"]},
    "else": {"required": ["c"]},
}
BOTH: Schema = {
    "allOf": [
        {"properties": {"x": {"enum": [22, 333]}}, "required": ["x"]},
        {"properties": {"x": {"minimum": 20}, "y": {"type": "string", "pattern": "^[0-9]{2}-[a-z]+$"}}, "required": ["y"]},
    ],
    "type": "object",
}


def rest(schema: Schema, begun: bytes) -> bytes | None:
    guide = Guide(schema)
    return guide.rest(guide.after(guide.start(), begun))


@pytest.mark.parametrize(
    ("schema", "begun", "expected"),
    [
        (NODE, b"", b'{"l":null,"r":[]}'),
        (NODE, b'{"l":{"l":{"l', b'":null,"r":[]},"r":[]},"r":[]}'),
        (NODE, b'{"l":null,"r":[{"l":n', b'ull,"r":[]}]}'),
        (PETS, b'{"kind":"c', b'at","lives":3}'),
        (PETS, b'{"kind":"dog"', b',"name":"aa"}'),
        (PETS, b'{"kind":"wolf","name":"\\u00e', b'0a"}'),
        (CONDITION, b'{"a":"x"', b',"b":null}'),
        (CONDITION, b'{"a":"y",', b'"c":true}'),
        (BOTH, b"{", b'"x":22,"y":"00-a"}'),
        (BOTH, b'{"x":333,"y":"47', b'-a"}'),
        ({"type": "array", "items": {"type": "integer", "multipleOf": 7}, "minItems": 2}, b"[1", b"4,0]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 2}, b'["a"', b',"b"]'),
        ({"type": "object", "minProperties": 2, "properties": {"p": {}, "q": {}, "r": {}}}, b'{"q":1', b',"r":0}'),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, b'{"a":1', b',"b":0}'),
        (
            {"type": "object", "patternProperties": {"^x[0-9]$": {"const": None}}, "additionalProperties": False},
            b'{"x',
            b'0":null}',
        ),
        ({"type": "string", "format": "date"}, b'"2024-02', b'-29"'),
        ({"type": "string"}, b'"caf\xc3', b'\xa1"'),
        ({"type": "number"}, b"1.", b"1"),
        ({"minItems": 3, "type": "array", "items": False}, b"", None),
        ({"not": {}, "anyOf": []}, b"", None),
    ],
)
def test_the_rest_is_short_and_valid(schema: Schema, begun: bytes, expected: bytes | None) -> None:
    found = rest(schema, begun)
    assert found == expected
    if found is not None:
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(begun + found))


def test_in_doubt_an_array_gets_what_it_must_contain_and_a_number_goes_on() -> None:
    guide = Guide({"type": "array", "contains": {"const": 5}})
    place = guide.after(guide.start(), b"[7")
    guesses = list(guide.guesses(place))
    assert guesses[:3] == [b"]", b",5]", b".1]"]


def test_branches_within_themselves_and_a_web_of_them_are_given_up_quickly() -> None:
    web: dict[str, Schema] = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 3} for at in range(500)}
    assert rest({"$ref": "#/$defs/d0", "$defs": web}, b"") is None
    assert (
        rest({"anyOf": [{"$ref": "#/$defs/self"}, {"const": 7}], "$defs": {"self": {"anyOf": [{"$ref": "#/$defs/self"}]}}}, b"")
        == b"7"
    )


def test_values_that_would_double_with_each_level_are_given_up_quickly() -> None:
    levels: dict[str, Schema] = {
        f"d{at}": {"type": "array", "minItems": 2, "items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(60)
    }
    assert rest({"$ref": "#/$defs/d0", "$defs": {**levels, "d60": {"type": "null"}}}, b"[") is None
    assert rest({"$ref": "#/$defs/d52", "$defs": {**levels, "d60": {"type": "null"}}}, b"[") is not None


def test_keys_that_make_a_pattern_go_back_take_no_time() -> None:
    name = "a" * 60 + "!"
    schema: Schema = {"type": "object", "required": [name], "patternProperties": {"^(a+)+$": {"type": "integer"}}}
    assert rest(schema, b"{") == b'"' + name.encode() + b'":0}'


def test_many_subschemas_that_are_needed_are_each_asked_for_a_few_times() -> None:
    names = [f"p{at}" for at in range(600)]
    whole = rest({"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}, b"")
    assert whole is not None and json.loads(whole) == dict.fromkeys(names, "")
    assert rest({"type": "array", "prefixItems": [{"const": at} for at in range(1000)], "minItems": 1000}, b"") is not None


def test_any_keys_may_be_taken_already() -> None:
    names = ["a" * count for count in range(70)]
    begun = json.dumps(dict.fromkeys(names, 0)).encode()[:-1] + b","
    assert rest({"type": "object", "required": ["z"]}, begun) == b'"z":0}'


@pytest.mark.parametrize("begun", [b"", b"1" * 5000])
def test_numbers_of_any_length_are_read(begun: bytes) -> None:
    guide = Guide({"type": "integer", "minimum": 10**4290, "multipleOf": 7})
    assert list(guide.guesses(guide.after(guide.start(), begun)))
    assert rest({"type": "integer", "minimum": 10**400, "multipleOf": 10}, b"") == b"1" + b"0" * 400
