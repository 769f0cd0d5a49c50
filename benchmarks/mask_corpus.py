"""Schemas, patterns, grammars and structural tags that are made to hurt: while they compile, or with every mask.

`mask_hostile.py` measures them, and a test holds each of them to an answer. Each is refused or harmless.
"""

import json
from collections.abc import Callable, Mapping

from branchpoint.constrained.spec import Constraint, Ebnf, JsonSchema, Regex, StructuralTag

__all__ = ["HOSTILE"]


def _schema(schema: object) -> Constraint:
    return JsonSchema(json.dumps(schema))


def _nested(count: int, step: str, inner: object) -> object:
    for _ in range(count):
        inner = {"type": "object", "properties": {"a": inner}, "required": ["a"]} if step == "object" else {step: [inner]}
    return inner


def _chain(count: int, around: Callable[[object], object]) -> Constraint:
    steps = {f"d{at}": around({"$ref": f"#/$defs/d{at + 1}"}) for at in range(count)}
    return _schema({"$ref": "#/$defs/d0", "$defs": {**steps, f"d{count}": {"type": "integer"}}})


def _choices(count: int) -> list[object]:
    return [
        {"anyOf": [{"required": [f"a{at}"]}, {"required": [f"b{at}"]}, {"properties": {f"c{at}": {"type": "string"}}}]}
        for at in range(count)
    ]


def _conditions(count: int) -> object:
    inner: object = {"type": "object"}
    for at in range(count):
        condition = {"properties": {f"k{at}": {"const": at}}, "required": [f"k{at}"]}
        inner = {"if": condition, "then": {"required": [f"x{at}"]}, "else": inner}
    return inner


def _named(count: int) -> dict[str, object]:
    return {f"p{at}": {"type": "integer"} for at in range(count)}


def _deep_text(open_: str, inner: str, close: str, count: int) -> str:
    return open_ * count + inner + close * count


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)

_SCHEMAS: dict[str, Callable[[], Constraint]] = {
    "no JSON": lambda: JsonSchema("{" * 50),
    "brackets 100,000 deep": lambda: JsonSchema(_deep_text("[", "", "]", 100_000)),
    "objects 3,000 deep": lambda: JsonSchema(
        _deep_text('{"type":"object","required":["a"],"properties":{"a":', "true", "}}", 3_000)
    ),
    "objects 30 deep": lambda: _schema(_nested(30, "object", {"type": "integer"})),
    "allOf 90 deep": lambda: _schema(_nested(45, "allOf", {"type": "integer"})),
    "a million characters": lambda: JsonSchema('{"description":"' + "x" * 1_000_000 + '"}'),
    "two million characters": lambda: JsonSchema('{"description":"' + "x" * 2_000_000 + '"}'),
    "nothing": lambda: _schema({"not": {}}),
    "a reference to itself": lambda: _schema({"$ref": "#"}),
    "references in a circle": lambda: _schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "recursion that is required": lambda: _schema({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    "a dynamic circle": lambda: _schema({"$dynamicAnchor": "x", "allOf": [{"$dynamicRef": "#x"}]}),
    "references 5,000 long": lambda: _chain(5_000, lambda step: {"anyOf": [step, {"type": "null"}]}),
    "arrays of references 2,000 long": lambda: _chain(2_000, lambda step: {"type": "array", "items": step}),
    "a fan of references": lambda: _chain(60, lambda step: {"allOf": [step, step]}),
    "a fan of choices": lambda: _chain(60, lambda step: {"anyOf": [step, {"type": "array", "items": step}]}),
    "a document that isn't there": lambda: _schema({"$ref": "http://localhost:1/schema.json"}),
    "patterns together": lambda: _schema({"allOf": [{"type": "string", "pattern": f"a.*{at}"} for at in range(50)]}),
    "multiples together": lambda: _schema({"allOf": [{"type": "integer", "multipleOf": prime} for prime in _PRIMES]}),
    "a tiny multiple": lambda: _schema({"type": "number", "multipleOf": 1e-300}),
    "bounds of 400 digits": lambda: _schema({"type": "integer", "minimum": 10**400, "maximum": 10**400 + 1}),
    "keys of 1,000 patterns": lambda: _schema(
        {"type": "object", "patternProperties": {f"^p{at}$": {"type": "integer"} for at in range(1_000)}}
    ),
    "keys of patterns that overlap": lambda: _schema(
        {"type": "object", "patternProperties": {f"a.*{at}": {"minimum": at} for at in range(20)}, "additionalProperties": False}
    ),
    "20,000 properties": lambda: _schema({"type": "object", "properties": _named(20_000)}),
    "20,000 properties in any order": lambda: JsonSchema(
        json.dumps({"type": "object", "properties": _named(20_000), "additionalProperties": False}), order="any"
    ),
    "20,000 required keys": lambda: _schema({"type": "object", "required": list(_named(20_000))}),
    "40,000 fixed texts": lambda: _schema({"enum": [f"value {at} {at * 7919 % 10_000}" for at in range(40_000)]}),
    "a billion items": lambda: _schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**9}),
    "a billion characters": lambda: _schema({"type": "string", "minLength": 10**9}),
    "a million keys": lambda: _schema({"type": "object", "minProperties": 10**6}),
    "a counted pattern": lambda: _schema({"type": "string", "pattern": "^(a{1,1000}){1,1000}$", "maxLength": 100_000}),
    "a word count": lambda: _schema({"type": "string", "pattern": "^(?:\\S+\\s+){0,99}\\S+$", "maxLength": 5_000}),
    "choices that multiply": lambda: _schema({"allOf": _choices(12)}),
    "choices that multiply, not": lambda: _schema({"not": {"allOf": _choices(12)}}),
    "one of 40 that overlap": lambda: _schema(
        {"oneOf": [{"properties": {f"a{at}": {"type": "string"}, "b": {"not": {"const": at}}}} for at in range(40)]}
    ),
    "one of one of one": lambda: _schema({"oneOf": [{"oneOf": _choices(5)}, {"not": {"oneOf": _choices(5)}}, *_choices(5)]}),
    "40 conditions within one another": lambda: _schema(_conditions(40)),
    "dependent schemas": lambda: _schema(
        {"dependentSchemas": {f"p{at}": {"required": [f"p{at + 1}"], "not": {"required": ["x"]}} for at in range(300)}}
    ),
    "what nobody evaluates": lambda: _schema(
        {"allOf": [{"anyOf": [{"properties": {f"p{at}": True}}, True]} for at in range(300)], "unevaluatedProperties": False}
    ),
    "a million that are contained": lambda: _schema({"type": "array", "contains": {"const": 1}, "minContains": 10**6}),
}

_OTHERS: dict[str, Callable[[], Constraint]] = {
    "a long pattern": lambda: Regex("ab?" * 10_000),
    "a pattern 5,000 deep": lambda: Regex(_deep_text("(", "a", ")", 5_000)),
    "the 20th character from the end": lambda: Regex("(?:a|b)*a(?:a|b){20}"),
    "the 200th character from the end": lambda: Regex("(?:a|b)*a(?:a|b){200}"),
    "repeats of repeats": lambda: Regex("(?:.{0,1000}){0,1000}"),
    "neighbours that overlap": lambda: Regex(r"\w{1,10000}\w{1,10000}"),
    "nested quantifiers": lambda: Regex("(x+x+)+y"),
    "a back-reference": lambda: Regex(r"(a*)\1"),
    "an empty class": lambda: Regex(r"[^\s\S]"),
    "a case-blind word of 5,000": lambda: Regex(r"(?i)\w{5000}"),
    "rules 5,000 long": lambda: Ebnf(
        "start: r0 X\n" + "\n".join(f'r{at}: "a" r{at + 1} | "b"' for at in range(5_000)) + '\nr5000: "c"\nX: /x/'
    ),
    "terminals 7,000 long": lambda: Ebnf(
        "start: R0\n" + "\n".join(f'R{at}: "a" R{at + 1} | "b"' for at in range(7_000)) + '\nR7000: "c"'
    ),
    "terminals together": lambda: Ebnf("start: R\nR: " + " & ".join(f"/a.*{at}/" for at in range(300))),
    "a rule of itself": lambda: Ebnf("root ::= root"),
    "a rule twice itself": lambda: Ebnf('root ::= root root | root root root | "a"'),
}


def _ladder(count: int, word: str) -> dict[str, object]:
    """Definitions each of which refers twice to the next: two to the power of `count` ways through."""
    steps: dict[str, object] = {
        f"d{at}": {word: {"a": {"$ref": f"#/$defs/d{at + 1}"}, "b": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(count)
    }
    return {**steps, f"d{count}": {"type": "integer"}}


def _products(count: int) -> list[object]:
    """Choices of objects that all overlap, to be held together."""
    return [
        {"anyOf": [{"properties": {f"p{at}{each}": {"const": each}, "x": {"minimum": each}}} for each in range(6)]}
        for at in range(count)
    ]


def _tags(count: int, schema: object) -> Constraint:
    structures = [{"begin": f"<t{at}>", "schema": schema, "end": f"</t{at}>"} for at in range(count)]
    return StructuralTag(json.dumps({"type": "structural_tag", "structures": structures, "triggers": ["<t"]}))


_WIDE = {f"p{at}": {"type": ["integer", "null"]} for at in range(60)}

_MORE: dict[str, Callable[[], Constraint]] = {
    "what a ladder is not": lambda: _schema({"not": {"$ref": "#/$defs/d0"}, "$defs": _ladder(40, "properties")}),
    "one of two ladders": lambda: _schema(
        {"oneOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}], "$defs": _ladder(24, "properties")}
    ),
    "what wide objects are not": lambda: _schema({"properties": _WIDE, "not": {"properties": _WIDE, "required": list(_WIDE)}}),
    "choices times choices": lambda: _schema({"type": "object", "allOf": _products(8)}),
    "choices of texts times choices": lambda: _schema(
        {"allOf": [{"enum": [f"value {at * step}" for at in range(900)]} for step in range(1, 8)]}
    ),
    "20,000 texts that begin alike": lambda: _schema({"enum": ["a" * (at % 200) + str(at) for at in range(20_000)]}),
    "keys of large automata": lambda: _schema(
        {"patternProperties": {f"^(?:[a-z]*{letter}[a-z]{{12}}|x)$": {"minimum": 1} for letter in "abc"}}
    ),
    "towers of items that differ": lambda: _chain(
        30, lambda step: {"type": "array", "uniqueItems": True, "contains": step, "minContains": 2, "items": step}
    ),
    "ten megabytes": lambda: JsonSchema(json.dumps({"enum": ["x" * 1_000] * 10_000})),
    "exponents of a million": lambda: JsonSchema('{"type": "number", "minimum": 1e308, "multipleOf": 1e-1000000}'),
    "digits by the hundred thousand": lambda: JsonSchema('{"type": "integer", "multipleOf": ' + "7" * 100_000 + "}"),
    "a million dots": lambda: JsonSchema('{"type": "number", "maximum": 0.' + "1" * 900_000 + "}"),
    "names of a hundred thousand characters": lambda: _schema({"properties": {"k" * 100_000: {"type": "integer"}}}),
    "a pattern in a thousand places": lambda: _schema(
        {"properties": {f"p{at}": {"type": "string", "pattern": f"^(?:[a-z]+{at})+$"} for at in range(1_000)}}
    ),
    "branches that repeat": lambda: Regex("(?:(?:a|aa)*){1,1000}"),
    "words of any case, counted": lambda: Regex(r"(?i)(?:[\w-]{1,60}\.){1,100}\w+"),
    "classes of any case": lambda: Regex("(?i)" + "".join(f"[\\w{chr(0x3B1 + at % 20)}-\U0001f600]?" for at in range(400))),
    "words that may end anywhere": lambda: Regex(r"(?:\w+\s?){1,500}\w{200}"),
    "many ways to read the same": lambda: Ebnf('root ::= e\ne ::= e e | e "+" e | "(" e ")" | "a" | e e e'),
    "nothing as often as one likes": lambda: Ebnf('root ::= (a* b*)* "x"\na ::= b*\nb ::= ("" | "y")*'),
    "the same rule a thousand times": lambda: Ebnf(
        "root ::= "
        + " | ".join(f"r{at}" for at in range(1_000))
        + "\n"
        + "\n".join(f'r{at} ::= [a-z]+ " " root | "{at}"' for at in range(1_000))
    ),
    "terminals of a megabyte": lambda: Ebnf("start: A\nA: /" + "(?:[a-z]{1,50}[0-9]{1,50})" * 9_000 + "/"),
    "a terminal within itself": lambda: Ebnf("start: A\nA: B B\nB: C C\nC: D D\nD: /(?:[a-z0-9]{1,200} ){1,200}/"),
    "a thousand tags": lambda: _tags(1_000, {"type": "object", "properties": {"a": {"type": "integer"}}}),
    "tags of wide schemas": lambda: _tags(300, {"type": "object", "properties": _WIDE}),
    "free text with a thousand ends": lambda: StructuralTag(
        json.dumps(
            {"type": "structural_tag", "format": {"type": "any_text", "excludes": [f"end {at} of it" for at in range(1_000)]}}
        )
    ),
}
"""Deep ladders, products, towers, numbers beyond reason, ambiguous grammars, tags by the thousand."""


HOSTILE: Mapping[str, Callable[[], Constraint]] = {**_SCHEMAS, **_OTHERS, **_MORE}
"""By what is wrong with them."""
