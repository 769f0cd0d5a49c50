"""Patterns of schemas mean for the engine what ECMA 262 means by them, and their complements are just that."""

import itertools
import re

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.complement import complement_pattern
from branchpoint.constrained.ecma import engine_pattern
from branchpoint.constrained.patterns import engine_patterns
from branchpoint.constrained.rewriting import avoid
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import accepts, compiled

WORDS = ["".join(letters) for length in range(5) for letters in itertools.product("abfox-\n", repeat=length)]


def as_python(pattern: str) -> str:
    return re.sub(r"\\u\{([0-9A-Fa-f]+)\}", lambda code: f"\\U{int(code[1], 16):08X}", pattern)[1:-1]


@pytest.mark.parametrize(
    "pattern",
    ["^a", "a", r"a\Z", "^ab", "^[a-z]+", "^foo", "x-", "foo|bar", r"\d{3}", r"^\S", "(a|b)x", "^(?:foo|bar)", "^x-.*f"],
)
def test_a_complement_is_everything_else(pattern: str) -> None:
    other = complement_pattern(pattern.replace(r"\Z", "$"))
    assert other is not None
    compiled_other = re.compile(as_python(other).replace("[^]", r"[\s\S]"))
    found = re.compile(pattern, re.ASCII)
    assert [word for word in WORDS if (found.search(word) is None) != (compiled_other.fullmatch(word) is not None)] == []


@pytest.mark.parametrize("pattern", ["", "^a|b$", "(?=a)", "(a)\\1", "[a-z]{500}"])
def test_what_has_no_complement_here_is_none(pattern: str) -> None:
    assert complement_pattern(pattern) is None


def test_strings_can_be_left_out() -> None:
    pattern = re.compile(as_python(avoid(["ab", "abf", "x"])).replace("[^]", r"[\s\S]"))
    assert {word for word in WORDS if not pattern.fullmatch(word)} == {"ab", "abf", "x"}


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        (r"^\d+$", "^[0-9]+$"),
        (r"[\w-]", "[A-Za-z0-9_-]"),
        ("a{b", r"a\{b"),
        (r"\u00e9\uD83D\uDE00", r"\x{E9}\x{1F600}"),
        (r"(?<x>a)\/", r"(?:a)\x{2F}"),
        ("[[]", r"[\[]"),
        ("^[^]$", r"^[\s\S]$"),
        (r"(?!a)", None),
        (r"(a)\1", None),
        (r"\ud800", None),
    ],
)
def test_ecma_in_the_engines_words(pattern: str, written: str | None) -> None:
    assert engine_pattern(pattern) == written


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^(?=.*[A-Z])(?=.*\d).{3,}$", ["aA1", "1Axx"], ["aaa", "A1", "aA"]),
        ("^(?!foo)[a-z]+$", ["fo", "barfoo"], ["foo", "foobar", "A"]),
        ("^(?!foo$).*$", ["foobar", ""], ["foo"]),
    ],
)
def test_look_aheads_at_the_start_are_followed(
    compiler: GrammarCompiler, vocabulary: Vocabulary, pattern: str, good: list[str], bad: list[str]
) -> None:
    assert engine_patterns(pattern) is not None
    grammar = compiled(compiler, JsonSchema(f'{{"type":"string","pattern":"{pattern.replace(chr(92), chr(92) * 2)}"}}'))
    assert [text for text in good if not accepts(grammar, vocabulary, f'"{text}"')] == []
    assert [text for text in bad if accepts(grammar, vocabulary, f'"{text}"')] == []
