"""Schemas, patterns and grammars that are made to hurt: how long each takes, and how long it keeps another thread waiting.

Used by `benchmarks.masks`, and by a test that holds each of them to an answer.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.spec import Constraint, Ebnf, JsonSchema, Regex

__all__ = ["HOSTILE", "measure_hostile"]

LONGEST_ANSWER = 60.0
TICK = 0.001


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

HOSTILE: Mapping[str, Callable[[], Constraint]] = {**_SCHEMAS, **_OTHERS}
"""By what is wrong with them. Each is refused or harmless."""


def measure_hostile(compiler: GrammarCompiler) -> dict[str, tuple[str, float, bool]]:
    """The slowest answer, the longest that another thread had to wait while they were compiled, and how many were refused."""
    compiler.compile(Ebnf('start: "a"')).result(LONGEST_ANSWER)
    waited, refused = 0.0, 0
    slowest = ("", 0.0)
    for name, make in HOSTILE.items():
        constraint = make()
        with _Ticker() as ticker:
            started = time.perf_counter()
            refused += isinstance(compiler.compile(constraint).exception(LONGEST_ANSWER), GrammarError)
            taken = time.perf_counter() - started
        slowest = max(slowest, (name, taken), key=lambda each: each[1])
        waited = max(waited, ticker.longest)
    return {
        "hostile, refused": ("constraints", refused, False),
        "hostile, not refused": ("constraints", len(HOSTILE) - refused, True),
        f"hostile, slowest answer ({slowest[0]})": ("s", slowest[1], True),
        "hostile, longest wait of another thread": ("ms", waited * 1e3, True),
    }


class _Ticker:
    """A thread that wakes every millisecond, as the engine's loop would, and knows the longest that it overslept."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "_Ticker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.perf_counter()
        while not self._ended.wait(TICK):
            now = time.perf_counter()
            self.longest = max(self.longest, now - before - TICK)
            before = now
