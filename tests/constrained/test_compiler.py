"""The compiler shares what is asked twice, forgets what is old, and turns whatever is hostile into its own caller's error."""

import threading
import time
from concurrent.futures import CancelledError

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import (
    CompilerBusy,
    CompilerClosed,
    EmptyLanguage,
    GrammarError,
    InvalidGrammar,
    LimitExceeded,
    MatcherError,
)
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.vocabulary import Vocabulary, make_vocabulary
from tests.constrained.corpus import accepts, allowed, compiled

TINY = make_vocabulary({byte: bytes([byte]) for byte in range(256)}, (), (256,), 257, list)


def test_the_same_constraint_is_compiled_once() -> None:
    compiler = GrammarCompiler(TINY)
    first = compiler.compile(Regex("ab")).result(30)
    assert compiler.compile(Regex("ab")).result(30) is first
    assert compiler.compile(Regex("ab"), b"x").result(30) is not first
    assert compiler.compile(Ebnf('start: "ab"')).result(30) is not first
    assert (compiler.stats.compiled, compiler.stats.hits) == (3, 1)
    compiler.close()


def test_compilations_in_flight_are_shared_and_cancelled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = GrammarCompiler(TINY, workers=1)
    gate = threading.Event()
    compiler._pool.submit("gate", gate.wait)
    futures = [compiler.compile(Choice(("a", "b"))) for _ in range(5)]
    assert futures[1].cancel()
    gate.set()
    grammars = {futures[number].result(30) for number in (0, 2, 3, 4)}
    assert len(grammars) == 1
    with pytest.raises(CancelledError):
        futures[1].result(30)
    assert (compiler.stats.compiled, compiler.stats.shared) == (1, 4)
    compiler.close()


def test_long_constraints_are_kept_as_far_as_their_length_allows() -> None:
    compiler = GrammarCompiler(TINY, limits=CompilerLimits(cached_characters=20))
    short = compiler.compile(Regex("ab")).result(30)
    compiler.compile(Regex("a{1,2}b{1,2}c")).result(30)
    assert compiler.compile(Regex("ab")).result(30) is short
    compiler.compile(Choice(("ab", "bcdefghi"))).result(30)  # the pattern of 13 goes, the short one was asked for since
    assert compiler.compile(Regex("ab")).result(30) is short
    long = compiler.compile(Regex("a" * 30)).result(30)
    assert compiler.compile(Regex("a" * 30)).result(30) is long
    assert compiler.compile(Regex("ab")).result(30) is not short
    assert compiler.stats.compiled == 5
    compiler.close()


def test_the_least_recently_used_is_dropped() -> None:
    compiler = GrammarCompiler(TINY, limits=CompilerLimits(cached=2))
    kept = compiler.compile(Choice(("a",))).result(30)
    compiler.compile(Choice(("b",))).result(30)
    assert compiler.compile(Choice(("a",))).result(30) is kept
    compiler.compile(Choice(("c",))).result(30)
    assert compiler.compile(Choice(("a",))).result(30) is kept
    assert compiler.stats.compiled == 3
    compiler.compile(Choice(("b",))).result(30)
    assert compiler.stats.compiled == 4
    compiler.close()


def test_a_refusal_is_remembered_for_a_while() -> None:
    compiler = GrammarCompiler(TINY, limits=CompilerLimits(failure_seconds=0.05))
    for _ in range(2):
        with pytest.raises(GrammarError):
            compiler.compile(Regex("(")).result(30)
    assert compiler.stats.refused == 1
    time.sleep(0.06)
    with pytest.raises(GrammarError):
        compiler.compile(Regex("(")).result(30)
    assert compiler.stats.refused == 2
    compiler.close()


def test_a_closed_compiler_answers_everyone() -> None:
    compiler = GrammarCompiler(TINY, workers=1)
    gate = threading.Event()
    compiler._pool.submit("gate", gate.wait)
    waiting = compiler.compile(Regex("a"))
    closing = threading.Thread(target=compiler.close)
    closing.start()
    with pytest.raises(CompilerClosed):
        waiting.result(30)
    gate.set()
    closing.join(30)
    with pytest.raises(CompilerClosed):
        compiler.compile(Regex("a")).result(30)


def test_more_than_may_wait_are_refused() -> None:
    compiler = GrammarCompiler(TINY, workers=1, limits=CompilerLimits(waiting=2))
    gate = threading.Event()
    compiler._pool.submit("gate", gate.wait)
    futures = [compiler.compile(Regex("a" * length)) for length in (1, 2, 3)]
    with pytest.raises(CompilerBusy, match="try again"):
        futures[2].result(30)
    gate.set()
    assert futures[1].result(30) is not None
    compiler.close()


def test_cursors_of_one_grammar_are_independent(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiled(compiler, JsonSchema('{"type":"object","properties":{"a":{"type":"integer"}}}'))
    one, other = grammar.matcher(), grammar.matcher()
    before = allowed(other, vocabulary)
    assert one.advance(vocabulary.encode(b'{"a":1')) > 0
    assert allowed(other, vocabulary) == before


def test_many_threads_may_take_cursors(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    grammar = compiled(compiler, Regex("[a-z]{1,20}"))
    expected = allowed(grammar.matcher(), vocabulary)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.extend(allowed(grammar.matcher(), vocabulary) == expected for _ in range(5)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 20


@pytest.mark.parametrize(
    ("grammar", "error"),
    [
        ("", InvalidGrammar),
        ("garbage", InvalidGrammar),
        ('start: ("a"', InvalidGrammar),
        ("start: missing", InvalidGrammar),
        ("start: /(?=a)/", InvalidGrammar),
        ("start: <|im_end|>", InvalidGrammar),
        ("start: <[2]>", InvalidGrammar),
        ('start: %json {"not": {}}', InvalidGrammar),
        ("start: @other", InvalidGrammar),
        ('start: start "a"', EmptyLanguage),
        ('start: a\na: "x" a', LimitExceeded),
        ("root ::= missing", InvalidGrammar),
        ('rule ::= "a"', InvalidGrammar),
        ("root ::= [a-z", InvalidGrammar),
        ('root ::= "a" $$', InvalidGrammar),
        ('root ::= "\\ud800"', InvalidGrammar),
        ("root ::= " + "(" * 20_000, LimitExceeded),
        ('root ::= "' + "x" * 300_000 + '"', LimitExceeded),
    ],
)
def test_a_grammar_that_is_wrong_is_refused(compiler: GrammarCompiler, grammar: str, error: type[GrammarError]) -> None:
    with pytest.raises(error) as refused:
        compiled(compiler, Ebnf(grammar))
    assert len(str(refused.value)) < 800


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a"\n  | "b" # not the end\n\t| [c-d]+', ["a", "b", "cdc"], ["", "ab", "e"]),
        ('root ::= "#"\n | "\\u00e9" | "|"', ["#", "é", "|"], ["##"]),
        ('root ::= item ("," item)*\nitem ::= [^,\\n]{1,3}', ["a", "ab,c"], ["", "a,", "abcd"]),
        ('start: "<" /[^<>]+/ ">" // tags\n', ["<a>"], ["<>", "a"]),
        ('start: x\nx: "(" x ")" | "::="', ["::=", "((::=))"], ["(::=", ""]),
    ],
)
def test_both_syntaxes_are_followed(
    compiler: GrammarCompiler, vocabulary: Vocabulary, grammar: str, good: list[str], bad: list[str]
) -> None:
    built = compiled(compiler, Ebnf(grammar))
    assert [text for text in good if not accepts(built, vocabulary, text)] == []
    assert [text for text in bad if accepts(built, vocabulary, text)] == []


HOSTILE: list[Constraint] = [
    Regex("(a*)*" * 500 + "b"),
    Regex("(a|b)*a(a|b){18}", engine="outlines"),
    Regex(r"(\w{0,100}){0,100}", engine="outlines"),
    Regex("|".join("a" * length for length in range(1, 350))),
    Regex("(?i)" + "é" * 5000),
    Regex(r"[\w\W]" * 10_000),
    Regex("\x00\n/\\/"),
    JsonSchema('{"type":"string","maxLength":100000000}'),
    JsonSchema('{"type":"array","items":{"type":"array","minItems":10000},"minItems":10000}'),
    JsonSchema('{"enum":[' + ",".join(f'"{number:020}"' for number in range(20_000)) + "]}"),
    JsonSchema('{"type":"string","pattern":"' + "(a|aa)" * 200 + '$"}'),
    JsonSchema('{"anyOf":[' + ",".join(f'{{"type":"object","properties":{{"a{number}":{{}}}}}}' for number in range(500)) + "]}"),
    JsonSchema('{"type":"object","properties":{' + ",".join(f'"p{number}":{{"type":"string"}}' for number in range(2000)) + "}}"),
    Ebnf("start: " + " | ".join(f'"{number}"' for number in range(5000))),
    Choice(tuple(f"{number:05}" for number in range(20_000))),
    Choice(("x" * 1_000_000,)),
]


@pytest.mark.parametrize("which", range(len(HOSTILE)))
def test_a_hostile_constraint_costs_its_caller_only(compiler: GrammarCompiler, vocabulary: Vocabulary, which: int) -> None:
    try:
        matcher = compiled(compiler, HOSTILE[which]).matcher()
        for _ in range(3):
            forced = matcher.forced()
            assert matcher.advance(forced) == len(forced)
            mask = allowed(matcher, vocabulary)
            assert mask
            matcher.advance([min(mask)])
    except GrammarError as error:
        assert len(str(error)) < 800
        if isinstance(error, MatcherError):
            with pytest.raises(MatcherError):  # it sticks
                allowed(matcher, vocabulary)
