"""Choices reach every option and nothing else; healed outputs begin with the healed bytes, under any constraint."""

import json

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines.choice import ChoiceGrammar
from branchpoint.constrained.errors import EmptyLanguage, LimitExceeded, MatcherError
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.healing import compile_prefix
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary
from branchpoint.lang.calls import substring
from tests.constrained.corpus import Generator, accepts, allowed, compiled, constraints, is_valid


def sentences(grammar: CompiledGrammar, vocabulary: Vocabulary) -> set[bytes]:
    """Every text that some path of allowed tokens spells, by walking all of them."""
    found: set[bytes] = set()
    matcher = grammar.matcher()

    def walk(text: bytes) -> None:
        for token in allowed(matcher, vocabulary):
            if token in vocabulary.eos:
                found.add(text)
            else:
                assert matcher.advance([token]) == 1
                walk(text + vocabulary.tokens[token])
                matcher.rollback(1)

    walk(b"")
    return found


@pytest.mark.parametrize("text", ["banana", "aé€", 'say "no"\n'])
def test_a_quote_is_every_stretch_of_its_text_and_nothing_else(text: str) -> None:
    texts = {**{byte: bytes((byte,)) for byte in range(256)}, 256: b"an", 257: "é€".encode(), 258: b""}
    vocabulary = make_vocabulary(texts, frozenset({258}), (258,), 259, list)
    compiler = GrammarCompiler(vocabulary, 1)
    grammar = compiled(compiler, substring(text))
    stretches = {text[start:end].encode() for start in range(len(text)) for end in range(start, len(text) + 1)}
    assert sentences(grammar, vocabulary) == stretches
    compiler.close()


@pytest.mark.parametrize(
    "options", [("yes", "yes please", "ye"), ("",), ("a", "", "aa", "aaa"), ("é", "è", "e"), ("same", "same")]
)
def test_every_option_is_reached_and_nothing_else(vocabulary: Vocabulary, options: tuple[str, ...]) -> None:
    grammar = ChoiceGrammar(vocabulary, [option.encode() for option in options])
    assert sentences(grammar, vocabulary) == {option.encode() for option in options}


def test_no_path_leads_where_no_token_goes_on() -> None:
    lacking = make_vocabulary({0: b"a", 1: b"ab", 2: b"c", 3: b"abcd", 4: b"cd"}, (), (5,), 6, list)
    assert sentences(ChoiceGrammar(lacking, [b"abc", b"ac"]), lacking) == {b"abc", b"ac"}
    assert sentences(ChoiceGrammar(lacking, [b"abcd"]), lacking) == {b"abcd"}
    with pytest.raises(EmptyLanguage, match="no tokens that spell"):
        ChoiceGrammar(lacking, [b"a", b"abb"])
    healed = compile_prefix(lacking, b"ab").matcher()
    assert allowed(healed, lacking) == {1, 3}


def test_no_options_and_too_many_are_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(EmptyLanguage):
        compiled(compiler, Choice(()))
    with pytest.raises(LimitExceeded, match="20,001"):
        compiled(compiler, Choice(tuple(map(str, range(20_001)))))


def test_free_text_begins_with_the_healed_bytes(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = compiled(compiler, None, b" hel").matcher()
    tokens = {vocabulary.tokens[token] for token in allowed(matcher, vocabulary)}
    assert {b" ", b" h", b" hel", b" hello", b" help"} <= tokens
    assert all(text.startswith(b" hel") or b" hel".startswith(text) for text in tokens)
    assert not matcher.can_end
    assert matcher.advance(vocabulary.encode(b" hello")) == 1
    assert allowed(matcher, vocabulary) == set(range(vocabulary.size))
    assert matcher.can_end
    assert not matcher.finished
    matcher.rollback(1)
    assert not matcher.can_end


def test_free_text_without_a_prefix_is_free(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    matcher = compiled(compiler, None).matcher()
    assert allowed(matcher, vocabulary) == set(range(vocabulary.size))
    assert matcher.forced() == []


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema('{"type":"integer"}'),
        Regex("[0-9]+"),
        Regex("[0-9]+", engine="outlines"),
        Choice(("12", "5")),
        Ebnf("start: /[0-9]+/"),
    ],
)
@pytest.mark.parametrize("prefix", [b" ", b'x = "', "né".encode(), "\n/\\{é🙂".encode(), b"\xa9\x80", b"\xf0\x9f"])
def test_a_constraint_is_followed_after_the_healed_bytes(
    compiler: GrammarCompiler, vocabulary: Vocabulary, constraint: Constraint, prefix: bytes
) -> None:
    grammar = compiled(compiler, constraint, prefix)
    matcher = grammar.matcher()
    generator = Generator(vocabulary, seed=1)
    tokens: list[int] = []
    while not matcher.finished and len(tokens) < 60:
        token = generator.choose(sorted(allowed(matcher, vocabulary)), len(tokens))
        assert matcher.advance([token]) == 1
        tokens.append(token)
    text = vocabulary.text(tokens)
    assert text.startswith(prefix)
    assert not matcher.can_end or text[len(prefix) :].lstrip(b"-").isdigit()
    matcher.rollback(len(tokens))
    assert allowed(matcher, vocabulary) == allowed(grammar.matcher(), vocabulary)
    with pytest.raises(MatcherError):
        matcher.rollback(1)


def test_a_token_may_reach_over_the_end_of_the_healed_bytes(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    for constraint in (Choice(("hello",)), Regex("hello"), JsonSchema('{"const":"hello"}')):
        mask = allowed(compiled(compiler, constraint, b" ").matcher(), vocabulary)
        assert {vocabulary.tokens[token] for token in mask} > {b" "}


@pytest.mark.parametrize("name", ["person", "lark", "choice", "(?s:.){3,6}"])
def test_what_follows_the_healed_bytes_is_valid(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    constraint = constraints()[name]
    grammar = compiled(compiler, constraint, b': "')
    generator = Generator(vocabulary, seed=3)
    outputs = [output for output in (generator.generate(grammar) for _ in range(4)) if output is not None]
    assert outputs
    for output in outputs:
        assert output.startswith(b': "')
        assert is_valid(name, constraint, output[3:].decode())


def test_healing_does_not_loosen_a_grammar(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiled(compiler, JsonSchema(json.dumps({"enum": ["a", "b"]})), b"> ")
    assert accepts(grammar, vocabulary, '> "a"')
    assert not accepts(grammar, vocabulary, '"a"')
    assert not accepts(grammar, vocabulary, '> "c"')
