"""Constraints that the tests of this room generate under, and small helpers over matchers."""

import json
import re
from collections.abc import Iterable

import jsonschema
import numpy as np

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.grammar import CompiledGrammar, Matcher
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "married": {"type": "boolean"},
        "city_of_birth": {"enum": ["Rome", "New York", "São Paulo", "東京"]},
    },
    "required": ["first_name", "age", "married", "city_of_birth"],
    "additionalProperties": False,
}

SCHEMAS: dict[str, object] = {
    "person": PERSON,
    "optional": {**PERSON, "required": ["age"]},
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["b"]},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "array": {"type": "array", "items": {"type": "number", "minimum": -1, "exclusiveMaximum": 2.5}, "minItems": 1, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 4}],
        "items": False,
        "minItems": 2,
    },
    "any of": {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 5}, {"type": "integer"}, {"type": "null"}]},
    "one of": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
                "required": ["kind", "lives"],
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}},
                "required": ["kind", "name"],
            },
        ]
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
    "formats": {
        "type": "object",
        "properties": {"id": {"type": "string", "format": "uuid"}, "day": {"type": "string", "format": "date"}},
        "required": ["id", "day"],
        "additionalProperties": False,
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "multipleOf": 3},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
    },
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            {"type": "object", "properties": {"y": {"type": ["string", "null"], "maxLength": 3}}, "required": ["y"]},
        ]
    },
    "constants": {"enum": [1, "one", [1], {"one": 1}, None, "😀", 'quo"te\\']},
}

PATTERNS = (
    r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]",
    r"(?i)(yes|no|perhaps), \w{1,8}\.",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"[^\W\d_]+ (?:[A-Z][a-z]*|\?)",
    r"\+?[\d\s()-]{5,12}",
    r"(?s:.){3,6}",
)

CHOICES = ("yes", "no", "yes, please", "yes, please!", "não", "")

LARK = 'start: NAME "=" sum\nsum: NUMBER ("+" NUMBER)*\nNAME: /[a-z]{1,5}/\nNUMBER: /[0-9]{1,3}/'
GBNF = 'root ::= "move " ("north" | "south")\n  | "take " [a-z]{2,6} # a thing'


def constraints() -> dict[str, Constraint]:
    """Every constraint of the corpus by name."""
    return {
        **{name: JsonSchema(json.dumps(schema)) for name, schema in SCHEMAS.items()},
        "person, spaced": JsonSchema(json.dumps(PERSON), whitespace="flexible"),
        **{pattern: Regex(pattern) for pattern in PATTERNS},
        "indexed": Regex(PATTERNS[0], engine="outlines"),
        "choice": Choice(CHOICES),
        "lark": Ebnf(LARK),
        "gbnf": Ebnf(GBNF),
    }


def is_valid(name: str, constraint: Constraint, text: str) -> bool:
    """Whether an independent validator takes `text`."""
    match constraint:
        case JsonSchema(schema):
            return jsonschema.Draft202012Validator(json.loads(schema)).is_valid(json.loads(text))
        case Regex(pattern):
            return re.fullmatch(pattern, text) is not None
        case Choice(options):
            return text in options
        case _:
            by_hand = {"lark": r"[a-z]{1,5}=[0-9]{1,3}(\+[0-9]{1,3})*", "gbnf": "move (north|south)|take [a-z]{2,6}"}
            return re.fullmatch(by_hand[name], text) is not None


def compiled(compiler: GrammarCompiler, constraint: Constraint | None, prefix: bytes = b"") -> CompiledGrammar:
    """The grammar, waited for."""
    return compiler.compile(constraint, prefix).result(timeout=30)


def allowed(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    """The set bits of a freshly filled row, whose old content doesn't matter."""
    row = allocate(1, vocabulary.size)[0]
    row[:] = -1
    matcher.fill(row)
    return set(iterate_allowed(row).tolist())


def accepts(grammar: CompiledGrammar, vocabulary: Vocabulary, text: str | bytes) -> bool:
    """Whether the whole text is a sentence, token by token as the tokenizer cuts it, each allowed by its mask."""
    matcher = grammar.matcher()
    tokens = vocabulary.encode(text.encode() if isinstance(text, str) else text)
    for token in tokens:
        masked = token in allowed(matcher, vocabulary)
        assert (matcher.advance([token]) == 1) == masked
        if not masked:
            return False
    return matcher.can_end


class Generator:
    """A model that isn't there: random logits, drawn towards what closes a value the longer the output gets."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._random = np.random.default_rng(seed)
        self._noise = self._random.normal(0, 3, 4 * vocabulary.size) / 1.5 + self._random.gumbel(size=4 * vocabulary.size)
        weights = {b'"': 1.0, b"}": 1.2, b"]": 1.2, b".": 0.5, b" ": 0.5}
        self._closing = np.array([weights.get(text[:1], 0.0) for text in vocabulary.tokens])
        self._closing[list(vocabulary.eos)] = 1.5

    def choose(self, candidates: Iterable[int], step: int) -> int:
        """A token among `candidates`: normal logits and Gumbel noise at temperature 1.5, from a stretch of a pool drawn once."""
        ids = candidates if isinstance(candidates, np.ndarray) else np.fromiter(candidates, dtype=np.int64)
        at = int(self._random.integers(len(self._noise) - len(ids)))
        scores = self._noise[at : at + len(ids)] + self._closing[ids] * min(3 + step / 2, 50)
        return int(ids[np.argmax(scores)])

    def generate(self, grammar: CompiledGrammar, limit: int = 120) -> bytes | None:
        """An output's bytes, None where it was cut at `limit` tokens. Appends forced tokens half of the time."""
        matcher = grammar.matcher()
        row = allocate(1, self._vocabulary.size)[0]
        output: list[int] = []
        while len(output) < limit:
            forced = matcher.forced() if self._random.random() < 0.5 else []
            if not forced:
                matcher.fill(row)
                forced = [self.choose(iterate_allowed(row), len(output))]
            assert matcher.advance(forced) == len(forced)
            output += forced
            if output[-1] in self._vocabulary.eos:
                assert matcher.finished
                return self._vocabulary.text(output[:-1])
        return None
