"""`close="steer"`: within any limit that holds a complete output every output is complete, and nothing longer is offered."""

import json
import random

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines import steered
from branchpoint.constrained.engines.steered import Limit, SteerableGrammar, SteeredMatcher
from branchpoint.constrained.errors import TooFewTokens
from branchpoint.constrained.guide_values import rest_of_number
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.constrained.shortest import Patterns
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import compiled, constraints, is_valid

CONSTRAINTS = constraints()
JUDGED = {
    "unique": {"type": "array", "items": {"enum": ["a", "b", "c", "d"]}, "uniqueItems": True, "minItems": 3},
    "not": {"type": "object", "properties": {"a": {"type": "string", "not": {"enum": ["", "x"]}}}, "required": ["a"]},
    "contains": {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}},
    "nested": {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "y": {"type": "string", "minLength": 30}},
        "required": ["y"],
    },
}
STUCK = {
    "type": "array",
    "items": {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 5}]},
    "maxItems": 2,
    "minItems": 1,
}
ALL: dict[str, Constraint] = {**CONSTRAINTS, **{name: JsonSchema(json.dumps(schema)) for name, schema in JUDGED.items()}}


def steerable(compiler: GrammarCompiler, constraint: Constraint, prefix: bytes = b"") -> SteerableGrammar:
    grammar = compiler.compile(constraint, prefix, steerable=True).result(timeout=60)
    assert isinstance(grammar, SteerableGrammar)
    return grammar


class Writer:
    """Draws tokens as the engine does: from a loose row, asking about each; forced ones without."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._random = random.Random(seed)
        self._row = allocate(1, vocabulary.size)[0]

    def write(self, matcher: SteeredMatcher, limit: int, *, exact: bool = False) -> tuple[list[int], bool]:
        """An output of at most `limit` tokens, and whether it is complete."""
        output: list[int] = []
        while len(output) < limit and not matcher.finished:
            tokens = matcher.forced()[: limit - len(output)] or [self._draw(matcher, exact=exact)]
            if tokens[0] in self._vocabulary.eos:
                break
            assert matcher.advance(tokens) == len(tokens)
            output += tokens
        return output, matcher.can_end

    def _draw(self, matcher: SteeredMatcher, *, exact: bool) -> int:
        residue = matcher.fill_loosely(self._row)
        if exact:
            residue.narrow(self._row)
        tokens = iterate_allowed(self._row).tolist()
        for refused in range(64):
            token = self._random.choice(tokens)
            if residue.allows(token):
                return token
            tokens.remove(token)
            if refused == 7:
                residue.narrow(self._row)
                tokens = sorted(set(tokens) & set(iterate_allowed(self._row).tolist()))
        raise AssertionError("64 tokens in a row were refused")


@pytest.mark.parametrize("name", ALL)
def test_every_output_is_complete_in_any_limit_that_holds_one(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str
) -> None:
    grammar = steerable(compiler, ALL[name])
    assert grammar.way is not None
    writer = Writer(vocabulary, seed=5)
    for more in (0, 1, 2, 5, 20, 60):
        limit = len(grammar.way) + more
        output, ends = writer.write(grammar.within(Limit(limit, 4096)).matcher(), limit, exact=more == 5)
        assert ends and len(output) <= limit, (more, vocabulary.text(output))
        assert is_valid(name, ALL[name], vocabulary.text(output).decode()), vocabulary.text(output)


def test_a_limit_below_every_known_output_is_refused_before_any_token(compiler: GrammarCompiler) -> None:
    grammar = steerable(compiler, CONSTRAINTS["person"])
    assert grammar.way is not None
    with pytest.raises(TooFewTokens, match=f"may have 3 tokens .* has {len(grammar.way)}") as caught:
        grammar.within(Limit(3, 100))
    assert caught.value.param == "max_tokens"
    with pytest.raises(TooFewTokens):
        grammar.within(Limit(100, len(grammar.way) - 1))


@pytest.mark.parametrize(
    ("constraint", "most"),
    [
        (Ebnf('root ::= "a" ("b" | "c")+ "d"'), 3),
        (Ebnf('root ::= item (", " item)* "."\nitem ::= [a-z]+'), 2),
        (Ebnf('root ::= "(" root ")" | "x" "x"* "y"'), 2),
        (Ebnf('root ::= ("ab" | "cd"){3} [0-9]+ ";"'), 8),
        (Ebnf('root ::= [0-9]+ ("," [0-9]+){5,} ";"'), 12),
        (Ebnf('root ::= pair{40} "."\npair ::= [a-z]+ "=" [0-9]{2,} ";"'), 201),
        (Choice(("no, thank you very much", "yes", "never")), 1),
        (Ebnf('root ::= "<" [a-z]{12} ">" [a-z]+ "!"'), 30),
        (Choice(("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ab")), 1),
    ],
)
def test_the_way_that_is_known_at_the_start_is_a_short_one(compiler: GrammarCompiler, constraint: Constraint, most: int) -> None:
    way = steerable(compiler, constraint).way
    assert way is not None and len(way) <= most


def test_what_is_remembered_of_a_grammar_within_one_limit_serves_it_within_others(compiler: GrammarCompiler) -> None:
    one, other = (steerable(compiler, CONSTRAINTS[name]) for name in ("person", "optional"))
    known = {one.within(Limit(400, 500)): "known"}
    assert known.get(one.within(Limit(300, 900, 1))) == "known" and known.get(other.within(Limit(400, 500))) is None


def test_far_from_the_limit_the_mask_is_the_grammars_own(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    for name in ("person", "array", "choice", "gbnf"):
        plain = compiled(compiler, CONSTRAINTS[name]).matcher()
        steered = steerable(compiler, CONSTRAINTS[name]).within(Limit(500, 500)).matcher()
        rows = allocate(2, vocabulary.size)
        for _ in range(8):
            plain.fill(rows[0])
            residue = steered.fill_loosely(rows[1])
            assert (rows[0] == rows[1]).all()
            tokens = [token for token in iterate_allowed(rows[0]).tolist() if token not in vocabulary.eos]
            if not tokens:
                break
            assert all(map(residue.allows, tokens[:: len(tokens) // 20 + 1]))
            assert plain.advance(tokens[-1:]) == steered.advance(tokens[-1:]) == 1


def test_a_steered_cursor_goes_back_to_where_it_was(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = steerable(compiler, CONSTRAINTS["person"])
    assert grammar.way is not None
    limit = Limit(len(grammar.way) + 3, 4096)
    first, second = grammar.within(limit).matcher(), grammar.within(limit).matcher()
    output, _ = Writer(vocabulary, seed=1).write(first, limit.tokens)
    rows = allocate(2, vocabulary.size)
    for kept in (len(output) // 2, 3, 0):
        first.rollback(len(output) - kept)
        second.rollback(second.advance(output[:kept]) - kept)
        first.fill(rows[0])
        second.fill(rows[1])
        assert (rows[0] == rows[1]).all() and first.forced() == second.forced()
        second.rollback(kept)
        assert first.advance(output[kept:]) == len(output) - kept


def test_bytes_that_were_cut_from_the_prompt_do_not_count(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = steerable(compiler, Choice(("yes", "no thanks")), b" ")
    assert grammar.way is not None
    limit = Limit(1, 100, healed=1)
    output, ends = Writer(vocabulary, seed=2).write(grammar.within(limit).matcher(), 2)
    assert ends and vocabulary.text(output) in (b" yes", b" no thanks")
    with pytest.raises(TooFewTokens):
        steerable(compiler, Choice(("no thanks, not today",)), b" ").within(limit)


@pytest.mark.parametrize(
    ("constraint", "tokens", "refused"),
    [
        (CONSTRAINTS["person"], 4, True),
        (JsonSchema('{"const":"abc def"}'), 2, True),
        (Ebnf('root ::= "move north"'), 1, True),
        (JsonSchema('{"type":"integer"}'), 1, False),
        (Regex("(?s:.){3,6}"), 1, False),  # too many to try
        (Choice(("", "yes")), 1, False),
        (JsonSchema(json.dumps(STUCK)), 3, False),  # a cursor breaks on what is tried
        (CONSTRAINTS["person"], 5, False),  # not looked at
        (CONSTRAINTS["person"], 0, False),  # asks for nothing
    ],
)
def test_a_limit_so_low_that_certainly_nothing_is_complete_is_refused(
    compiler: GrammarCompiler, constraint: Constraint, tokens: int, *, refused: bool
) -> None:
    failure = compiler.compile(constraint, most=tokens).exception(timeout=60)
    assert isinstance(failure, TooFewTokens) == refused
    assert refused or failure is None


def test_short_texts_for_patterns() -> None:
    assert Patterns().rest("^[A-Z]{2}-[0-9]{1,4}$") == "AA-0"
    assert Patterns().rest("request") == "request"
    assert Patterns().rest("a|bc|") == ""
    assert Patterns().rest("(?=x)y") is None and Patterns().rest("[") is None
    assert Patterns().rest("a{10000}", "a" * 7) == "a" * 9993


@pytest.mark.parametrize(
    ("schema", "begun", "rest"),
    [
        ({"maximum": -1000}, "-", "1000"),
        ({"minimum": 1500, "maximum": 1600}, "15", "00"),
        ({"minimum": -7}, "-", "1"),
        ({"exclusiveMinimum": 99}, "2", "00"),
        ({"minimum": 5, "maximum": 9}, "1", None),
        ({"minimum": 0}, "-", None),
        ({"minimum": -9, "maximum": -3}, "-", "3"),
        ({"maximum": 5}, "0", ""),
    ],
)
def test_digits_that_a_begun_integer_still_needs(schema: dict[str, int], begun: str, rest: str | None) -> None:
    found = rest_of_number(schema, begun.encode())
    assert found == (None if rest is None else rest.encode())


def test_a_begun_integer_far_from_its_bound_is_steered_to_it(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": -(10**12)}}, "required": ["n"]}
    matcher = steerable(compiler, JsonSchema(json.dumps(schema))).within(Limit(30, 60)).matcher()
    assert matcher.advance(vocabulary.encode(b'{"n":-3')) == len(vocabulary.encode(b'{"n":-3'))
    output, whole = Writer(vocabulary, 1).write(matcher, 30 - len(vocabulary.encode(b'{"n":-3')))
    assert whole and int(json.loads('{"n":-3' + vocabulary.text(output).decode())["n"]) <= -(10**12)


@pytest.mark.parametrize("name", ["ways are cheap", "judged"])
def test_where_there_is_no_time_to_try_anything_the_known_way_is_gone(
    compiler: GrammarCompiler, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    judged = {"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}, "minItems": 20}
    constraint = JsonSchema(json.dumps(judged)) if name == "judged" else Regex("[a-z]{300,}")
    grammar = steerable(compiler, constraint)
    assert grammar.way is not None
    monkeypatch.setattr(steered, "_SECONDS", 0.0)
    limit = len(grammar.way) + 40
    output, ends = Writer(vocabulary, 5).write(grammar.within(Limit(limit, 4096)).matcher(), limit)
    assert ends and vocabulary.text(output).startswith(vocabulary.text(grammar.way[:-8]))
