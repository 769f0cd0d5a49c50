"""Outputs that go on a sentence which is begun: behind any beginning, whatever of it is healed, masks and parser agree."""

import json
from collections.abc import Iterator

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines.steered import Limit, SteerableGrammar
from branchpoint.constrained.errors import NotInGrammar
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, Written
from branchpoint.constrained.vocabulary import make_vocabulary
from tests.constrained.corpus import allowed

PIECES = (b'":', b'"a', b'{"', b"1,", b"ab", "né".encode(), b"\xa9]", b' {"a', b"[1,")
SMALL = make_vocabulary(
    {**{byte: bytes([byte]) for byte in range(256)}, **dict(enumerate(PIECES, 256))}, (), (300,), 301, lambda text: list(text)
)
UNIQUE = {"type": "array", "items": {"enum": [1, 2, "é"]}, "uniqueItems": True}
SENTENCES: dict[str, tuple[Constraint, str]] = {
    "a schema": (JsonSchema('{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false}'), '{"a":12}'),
    "what is judged": (
        JsonSchema(json.dumps(UNIQUE)),
        '[1,"é",2]',
    ),
    "a pattern": (Regex("(ab)+né?"), "ababné"),
    "options": (Choice(("ab", "abab!", "né")), "abab!"),
    "a grammar": (Ebnf('root ::= "[" ("1" ",")* "1]"'), "[1,1,1]"),
}


@pytest.fixture(scope="module")
def plain() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(SMALL, 1, CompilerLimits(trial_seconds=0))
    yield compiler
    compiler.close()


def behind(compiler: GrammarCompiler, constraint: Constraint, text: str, healed: bytes = b"", **more: bool) -> CompiledGrammar:
    return compiler.compile(constraint, healed, written=Written(text), **more).result(timeout=30)


@pytest.mark.parametrize("name", SENTENCES)
@pytest.mark.parametrize("healed", [0, 1, 3])
def test_masks_and_parser_agree_behind_every_beginning(plain: GrammarCompiler, name: str, healed: int) -> None:
    constraint, sentence = SENTENCES[name]
    for cut in range(len(sentence) + 1):
        text = sentence[:cut].encode()
        whole = b"See " + text
        heal = whole[len(whole) - healed :]
        matcher = behind(plain, constraint, sentence[:cut], heal).matcher()
        rest = heal + sentence[cut:].encode()
        for place in range(len(rest) + 1):
            mask = allowed(matcher, SMALL)
            for token in range(SMALL.size):
                taken = matcher.advance([token])
                matcher.rollback(taken)
                assert (taken == 1) == (token in mask), (cut, place, token)
            if place < len(rest):
                assert matcher.advance([rest[place]]) == 1
            if place < len(heal):
                assert mask <= {token for token in range(300) if SMALL.tokens[token][:1] == heal[place : place + 1]}
        assert matcher.can_end


def test_text_that_begins_no_sentence_is_refused_with_the_place(plain: GrammarCompiler) -> None:
    for text, good in (("abx", "ab"), ("b", ""), ("abnéé", "abné")):
        with pytest.raises(NotInGrammar, match=f"after {good!r}"):
            behind(plain, SENTENCES["a pattern"][0], text)
    with pytest.raises(NotInGrammar, match="after '\\[1,'"):
        behind(plain, SENTENCES["what is judged"][0], "[1,1,")


def test_a_sentence_that_is_to_be_whole_is(plain: GrammarCompiler) -> None:
    constraint, _ = SENTENCES["a pattern"]
    assert plain.compile(constraint, b"", written=Written("abn", whole=True)).result().matcher().can_end
    with pytest.raises(NotInGrammar, match="No sentence of the grammar ends"):
        plain.compile(constraint, b"a", written=Written("aba", whole=True)).result()


def test_ends_are_steered_to_from_there(plain: GrammarCompiler) -> None:
    grammar = behind(plain, SENTENCES["a schema"][0], '{"a":', b":", steerable=True)
    assert isinstance(grammar, SteerableGrammar)
    matcher = grammar.within(Limit(3, 4, 1)).matcher()
    assert matcher.advance([ord(":"), ord("7"), ord("}")]) == 3 and matcher.can_end
