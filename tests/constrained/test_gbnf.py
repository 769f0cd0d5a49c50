"""GBNF is followed character by character, every way to read a text included, and its mistakes are told by line and column."""

import itertools
import random
from collections.abc import Iterator

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.ebnf import normalise_ebnf
from branchpoint.constrained.errors import EmptyLanguage, InvalidGrammar, LimitExceeded
from branchpoint.constrained.gbnf import read_gbnf
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import Ebnf
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary
from tests.constrained.corpus import accepts, allowed, compiled
from tests.constrained.derivation import Derivation

LETTERS = "abéã"
PIECES = (b"ab", b"ba", b"aa", "é".encode(), "ãa".encode(), b"bb\xc3", b"\xa9a")
SMALL = make_vocabulary(
    {**{byte: bytes([byte]) for byte in range(256)}, **dict(enumerate(PIECES, 256))}, (), (300,), 301, lambda text: list(text)
)
TEXTS = ["".join(text) for length in range(5) for text in itertools.product(LETTERS, repeat=length)]


@pytest.fixture(scope="module")
def plain() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(SMALL, 1, CompilerLimits(trial_seconds=0))
    yield compiler
    compiler.close()


def random_grammar(chance: random.Random) -> str:
    names = ["root", *(f"x{number}" for number in range(chance.randrange(4)))]

    def item(depth: int) -> str:
        kind = chance.random()
        if kind < 0.35 or depth > 3:
            return '"' + "".join(chance.choice(LETTERS) for _ in range(chance.choice((0, 1, 1, 2, 3)))) + '"'
        if kind < 0.55:
            return chance.choice(("[ab]", "[^a]", "[é]", "[a-b]", "[éã]", "."))
        return chance.choice(names) if kind < 0.75 else f"({branches(depth + 1)})"

    def branches(depth: int) -> str:
        marks = ("", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}")
        sequences = (
            " ".join(item(depth) + chance.choice(marks) for _ in range(chance.choice((1, 1, 2, 2, 3))))
            for _ in range(chance.choice((1, 1, 2, 3)))
        )
        return " | ".join(sequences)

    return "\n".join(f"{name} ::= {branches(0)}" for name in names)


def reads(grammar: CompiledGrammar, text: str) -> bool:
    matcher, tokens = grammar.matcher(), list(text.encode())
    return matcher.advance(tokens) == len(tokens) and matcher.can_end


@pytest.mark.parametrize("seed", range(4))
def test_random_grammars_accept_what_they_derive_and_nothing_else(plain: GrammarCompiler, seed: int) -> None:
    chance = random.Random(seed)
    compared = 0
    for _ in range(12):
        text = random_grammar(chance)
        grammar = read_gbnf(text)
        sample = ["", *chance.sample(TEXTS, 40)]
        derived = {each for each in sample if Derivation(grammar, each).holds()}
        try:
            built = compiled(plain, Ebnf(text))
        except EmptyLanguage:
            assert not derived, text
            continue
        assert {each for each in sample if reads(built, each)} == derived, text
        compared += 1
    assert compared


@pytest.mark.parametrize("seed", range(3))
def test_the_mask_and_the_parser_agree_on_every_token(plain: GrammarCompiler, seed: int) -> None:
    chance = random.Random(100 + seed)
    steps = 0
    while steps < 20:
        try:
            matcher = compiled(plain, Ebnf(random_grammar(chance))).matcher()
        except EmptyLanguage:
            continue
        for _ in range(4):
            mask = allowed(matcher, SMALL)
            for token in range(SMALL.size):
                taken = matcher.advance([token]) == 1
                assert taken == (token in mask)
                if taken:
                    matcher.rollback(1)
            steps += 1
            going = sorted(mask - set(SMALL.eos))
            if not going:
                break
            assert matcher.advance([chance.choice(going)]) == 1


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= [a-z]+ "a"', ["ba", "aaa"], ["a", "b"]),
        ('root ::= "a" "b" "x" | "ab" "y" root?', ["abx", "aby", "abyabx"], ["ab", "abyx"]),
        ('root ::= .* "\\n" root?', ["\n", "a\nb\n"], ["", "a"]),
        ('root ::= item ws item\nitem ::= ws [a-c] ws\nws ::= " "*', ["ab", " a   b "], ["a", "abc"]),
        ('root ::= "(" root ")" | root "+" root | [0-9]', ["1+2", "(1+(2+3))"], ["1+", "()"]),
        ('root ::= "<" [^>]{1,3} ">" root | ""', ["", "<a><bc>"], ["<>", "<abcd>"]),
        ('root ::= ("a" | "")* "b"', ["b", "aab"], ["a"]),
    ],
)
def test_no_longest_match_hides_a_sentence(plain: GrammarCompiler, grammar: str, good: list[str], bad: list[str]) -> None:
    built = compiled(plain, Ebnf(grammar))
    assert [text for text in good if not reads(built, text)] == []
    assert [text for text in bad if reads(built, text)] == []


@pytest.mark.parametrize(
    ("grammar", "place", "words"),
    [
        ('root ::= "a" b\nc ::= "x"', "line 1, column 14", "none named b"),
        ('root ::= "a"\nx ::= [a-', "line 2, column 7", "closing ']'"),
        ('root ::= "a\nx ::= "b"', "line 1, column 10", "on the same line"),
        ('root ::= ("a" | "b"', "the end", "opens at line 1, column 10"),
        ('root ::= "a" )', "line 1, column 14", "end or go on"),
        ('root ::= "\\q"', "line 1, column 11", "escape"),
        ('root ::= "\\u12"', "line 1, column 11", "4 hexadecimal"),
        ("root ::= [z-a]", "line 1, column 11", "upwards"),
        ("root ::= []", "line 1, column 10", "at least one character"),
        ('root ::= "a"{3,2}', "line 1, column 13", "second number"),
        ('root ::= "a"\n\nroot ::= "b"', "line 3, column 1", "defined at line 1, column 1"),
        ("root ::= <think>", "line 1, column 10", "special tokens"),
        ('::= "a"', "line 1, column 1", "rule's name"),
    ],
)
def test_mistakes_are_told_by_line_and_column(grammar: str, place: str, words: str) -> None:
    with pytest.raises(InvalidGrammar, match=words) as refused:
        read_gbnf(grammar)
    assert place in str(refused.value)


def test_what_never_ends_is_refused_by_name() -> None:
    for grammar in ('root ::= a\na ::= b "x"\nb ::= a', "root ::= root", 'root ::= [^\\x00-\\U0010ffff] "a"'):
        with pytest.raises(EmptyLanguage, match="root"):
            normalise_ebnf(grammar)
    assert normalise_ebnf('root ::= "a" | b\nb ::= b "x"')  # the branch that never ends is left out


HOSTILE = {
    "many alternatives": "root ::= " + " | ".join(f'"{number}"' for number in range(15_000)),
    "a chain": "root ::= r0\n" + "\n".join(f'r{at} ::= "a" r{at + 1} | "b"' for at in range(4000)) + '\nr4000 ::= "c"',
    "a chain that recurs": "root ::= r0\n" + "\n".join(f'r{at} ::= "a{at}" r{(at * 7 + 1) % 2000} | "b"' for at in range(2000)),
    "doubling": "root ::= r0 root?\n" + "\n".join(f"r{at} ::= r{at + 1} r{at + 1}" for at in range(60)) + '\nr60 ::= "c"',
    "a long text": 'root ::= "' + "x" * 100_000 + '" root | "y"',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_grows_with_the_text(name: str) -> None:
    assert normalise_ebnf(HOSTILE[name]).startswith("start:")  # each would take minutes if it were squared


def test_too_much_of_anything_is_a_limit() -> None:
    for grammar in ("root ::= " + "(" * 70 + '"a"' + ")" * 70, 'root ::= "a"' + "*" * 500, 'root ::= "a"{1,99999999999}'):
        with pytest.raises(LimitExceeded):
            normalise_ebnf(grammar)


def test_real_tokens_follow_json_in_gbnf(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = r"""root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"""
    built = compiled(compiler, Ebnf(grammar))
    assert accepts(built, vocabulary, '{"name": "Ada \\u00e9 \\n", "ages": [1, -2.5e3,\n  {}], "ok": true}')
    assert not accepts(built, vocabulary, '{"name": }')
