r"""A normalised pattern means what `re.fullmatch` means, on both engines; what no automaton expresses is refused."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchpoint.constrained.automaton import count_states
from branchpoint.constrained.charset import category, fold_case
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines.llguidance import LlguidanceGrammar
from branchpoint.constrained.engines.outlines import OutlinesGrammar
from branchpoint.constrained.errors import EmptyLanguage, GrammarError, InvalidRegex, LimitExceeded
from branchpoint.constrained.regex import Chars, normalise_regex, parse_regex
from branchpoint.constrained.spec import Regex
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import PATTERNS, accepts, compiled

MORE = (
    r"^(?:a|ab)(?:c|bcd)*$",
    r"\A[^a-c\n]{2}\Z",
    r"(?x) a b  # spaces are for the eye",
    r"(?a)\w\d\s",
    r"(?i:ß|k)[^k]",
    r"[\]\-^\\/]+?",
    r"(?P<year>[12]\d)|x{0}|.",
    r"(|a|(b|))c",
)


@pytest.mark.parametrize("pattern", (*PATTERNS, *MORE))
@pytest.mark.parametrize("engine", ["llguidance", "outlines"])
def test_both_engines_agree_with_fullmatch(compiler: GrammarCompiler, vocabulary: Vocabulary, pattern: str, engine: str) -> None:
    grammar = compiled(compiler, Regex(pattern, engine=engine))  # type: ignore[arg-type]  # parametrised by its two names

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.one_of(st.from_regex(pattern, fullmatch=True), st.from_regex(pattern), st.text(max_size=4)))
    def agree(text: str) -> None:
        try:
            vocabulary.encode(text.encode())
        except (UnicodeEncodeError, ValueError):
            return
        if vocabulary.text(vocabulary.encode(text.encode())) == text.encode():
            assert accepts(grammar, vocabulary, text) == (re.fullmatch(pattern, text) is not None), text

    agree()
    assert grammar.narrowed == ()


@pytest.mark.parametrize("name", ["digit", "space", "word"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_categories_hold_what_re_holds(name: str, ascii_only: bool) -> None:
    pattern = re.compile({"digit": r"\d", "space": r"\s", "word": r"\w"}[name], re.ASCII if ascii_only else 0)
    expected = {code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and pattern.match(chr(code))}
    assert {code for low, high in category(name, ascii_only=ascii_only) for code in range(low, high + 1)} == expected


@pytest.mark.parametrize(
    "pattern", [r"(?i)\w", r"(?i)[\wα]", r"(?i)[^\W\d_]", r"(?i)[^\sk]", r"(?ia)[\Wk]", "(?i)[ιͅ-Ͱ]", "(?i)[^À-ÿß]", "(?i)[Ა-Ჿ]"]
)
def test_a_class_holds_what_re_holds_whatever_the_case(pattern: str) -> None:
    node, matcher = parse_regex(pattern), re.compile(pattern)
    assert isinstance(node, Chars)
    held = {code for low, high in node.chars for code in range(low, min(high, 0x1FFFF) + 1)}
    assert held == {code for code in range(0x20000) if not 0xD800 <= code < 0xE000 and matcher.match(chr(code))}


@pytest.mark.parametrize("char", "kKſsiIıİßẞÅåμѠ1")
def test_case_is_folded_as_re_folds_it(char: str) -> None:
    pattern = re.compile(f"(?i){char}")
    expected = {code for code in range(0x20000) if not 0xD800 <= code < 0xE000 and pattern.match(chr(code))}
    folded = fold_case(((ord(char), ord(char)),), ascii_only=False)
    assert {code for low, high in folded for code in range(low, high + 1)} == expected


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        (r"a(?=b)", "look-around"),
        (r"(?<!a)b", "look-around"),
        (r"(a)\1", "back-reference"),
        (r"(a)?(?(1)b|c)", "conditional"),
        (r"(?>a*)a", "atomic"),
        (r"a*+a", "possessive"),
        (r"\bword", "boundary"),
        (r"a^b", "anchor"),
        (r"a$b", "anchor"),
        ("(", "unterminated"),
        ("[a-", "unterminated"),
        ("*a", "nothing to repeat"),
        (r"\q", "bad escape"),
        ("a{99999999999}", "too large"),
    ],
)
def test_what_no_automaton_expresses_is_refused_by_name(pattern: str, named: str) -> None:
    with pytest.raises(InvalidRegex, match=named):
        normalise_regex(pattern)


@pytest.mark.parametrize("pattern", ["(?!)", r"[^\s\S]", r"a[^\w\W]+", r"[^\d\D]|(?!)x", "\ud800"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(EmptyLanguage):
        normalise_regex(pattern)


@pytest.mark.parametrize("pattern", ["(" * 20_000 + ")" * 20_000, "(((a{99}){99}){99}){99}", "x" * 100_000, r"\w" * 1000])
def test_a_pattern_beyond_the_limits_is_refused_with_the_numbers(pattern: str) -> None:
    with pytest.raises(LimitExceeded, match=r"got [\d,]+"):
        normalise_regex(pattern)


def test_a_branch_that_matches_nothing_is_left_out() -> None:
    assert normalise_regex(r"a|[^\s\S]b") == "a"
    assert normalise_regex(r"a([^\s\S]b)*") == "a"


@pytest.mark.parametrize(("pattern", "states"), [("", 1), ("abc", 4), ("a*", 2), ("(a|b)*a(a|b){2}", 9), ("a{3,5}", 6)])
def test_the_automaton_is_counted_before_it_is_built(pattern: str, states: int) -> None:
    assert count_states(parse_regex(pattern), 100) == states


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){12}", "a{5000}", r"(\w{30}){30}"])
def test_an_automaton_too_large_for_the_index_goes_to_llguidance(compiler: GrammarCompiler, pattern: str) -> None:
    assert count_states(parse_regex(pattern), 400) is None
    assert isinstance(compiled(compiler, Regex(pattern, engine="outlines")), LlguidanceGrammar)


def test_a_small_pattern_is_indexed_where_asked(compiler: GrammarCompiler) -> None:
    assert isinstance(compiled(compiler, Regex("[ab]{3}", engine="outlines")), OutlinesGrammar)
    assert isinstance(compiled(compiler, Regex("[ab]{3}")), LlguidanceGrammar)


def test_refusals_are_of_our_own_tree_and_short() -> None:
    with pytest.raises(GrammarError) as refused:
        normalise_regex("(" + "x" * 5000)
    assert isinstance(refused.value, ValueError)
    assert len(str(refused.value)) < 800


def test_anchors_among_many_parts_are_found() -> None:
    assert normalise_regex("^^a$$") == "a"
    assert normalise_regex("^$") == ""
    with pytest.raises(InvalidRegex, match="anchor"):
        normalise_regex("a^b")
    with pytest.raises(InvalidRegex, match="anchor"):
        normalise_regex("a$b" + "c?" * 100)
