"""What would take a grammar library minutes, gigabytes or the whole process is its caller's error, and nobody else's trouble."""

import json
from collections.abc import Callable, Iterator

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines.choice import ChoiceGrammar
from branchpoint.constrained.errors import CompilerBusy, GrammarError, InvalidGrammar, LimitExceeded
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.sandbox import Trial, is_risky
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex
from branchpoint.constrained.trial import _outcome
from branchpoint.runtime.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def small() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(
        load_tokenizer(None, 300, ()).vocabulary, 2, CompilerLimits(trial_seconds=0.5, trial_bytes=1 << 28)
    )
    yield compiler
    compiler.close()


def chain(count: int, rule: str) -> Constraint:
    rules = "\n".join(rule.format(at, at + 1) for at in range(count))
    return Ebnf(f'start: r0 R0\n{rules}\n{rule.split("{")[0]}{count}: "c"\n' + ("R0: /x/" if rule[0] == "r" else 'r0: "x"'))


def references(count: int) -> Constraint:
    steps = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}, {"type": "null"}]} for at in range(count)}
    return JsonSchema(json.dumps({"$ref": "#/$defs/d0", "$defs": {**steps, f"d{count}": {"type": "integer"}}}))


WIDE = {f"p{at}": {"type": ["integer", "null"]} for at in range(60)}
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
HOSTILE: dict[str, Callable[[], Constraint]] = {
    "chained rules": lambda: chain(5000, 'r{}: "a" r{} | "b"'),
    "chained terminals": lambda: chain(7000, 'R{}: "a" R{} | "b"'),
    "chained references": lambda: references(5000),
    "patterns together": lambda: JsonSchema(
        json.dumps({"allOf": [{"type": "string", "pattern": f"a.*{at}"} for at in range(50)]})
    ),
    "multiples together": lambda: JsonSchema(
        json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in PRIMES]})
    ),
    "patterned keys": lambda: JsonSchema(
        json.dumps({"type": "object", "patternProperties": {f"^p{at}$": {"type": "integer"} for at in range(1000)}})
    ),
    "terminals together": lambda: Ebnf("start: R\nR: " + " & ".join(f"/a.*{at}/" for at in range(300))),
    "wide objects that are not": lambda: JsonSchema(
        json.dumps({"properties": WIDE, "not": {"properties": WIDE, "required": list(WIDE)}})
    ),
}


WORDS = {
    "chained terminals": "256 MiB to compile, or nests too deep",
    "multiples together": "0.5 s of computing to compile",
    "terminals together": "0.5 s of computing to compile",
}
"""Which limit is named where only one can be meant."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_and_the_next_is_not(small: GrammarCompiler, name: str) -> None:
    hostile = HOSTILE[name]()
    assert is_risky(hostile)
    with pytest.raises(LimitExceeded, match=WORDS.get(name)):
        small.compile(hostile).result(timeout=60)
    assert small.compile(Ebnf(f'start: "{name}" "!"?')).result(timeout=60).matcher().forced()
    assert small.compile(Regex("[a-z]+")).result(timeout=60).matcher() is not None


def test_what_python_has_no_memory_for_is_said_to_be_too_large(monkeypatch: pytest.MonkeyPatch, small: GrammarCompiler) -> None:
    def try_out(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(small, "try_out", try_out)
    too_large = LimitExceeded("too large")
    assert _outcome(small, Trial(Regex("a"), ""), too_large) is too_large


def test_others_are_compiled_while_one_is_on_trial(small: GrammarCompiler) -> None:
    slow = small.compile(Ebnf("start: R\nR: " + " & ".join(f"/b.*{at}/" for at in range(200))))
    done = [small.compile(Regex(f"[a-z]{{{count}}}")) for count in range(1, 20)]
    for future in done:
        future.result(timeout=60)
    assert isinstance(slow.exception(timeout=60), LimitExceeded)


def endless(name: str, count: int) -> list[Ebnf]:
    return [Ebnf(f"start: R\nR: /{name}{at}/ | " + " & ".join(f"/b.*{one}/" for one in range(200))) for at in range(count)]


def test_nobody_waits_behind_the_many_trials_of_another() -> None:
    limits = CompilerLimits(trial_seconds=0.4, trial_bytes=1 << 28, trials=4)
    compiler = GrammarCompiler(load_tokenizer(None, 300, ()).vocabulary, 2, limits)
    hostile = [compiler.compile(one, owner="hostile") for one in endless("h", 8)]
    assert sum(isinstance(one.exception(0), CompilerBusy) for one in hostile if one.done()) >= 3, "an owner's line has an end"
    assert compiler.compile(Regex("[a-z]+"), owner="hostile").result(timeout=60).matcher() is not None
    tried = compiler.compile(Ebnf('start: "a" "b"?'), owner="other").result(timeout=60)
    waiting = [one for one in hostile if not one.done()]
    assert len(waiting) >= 2 and tried.matcher() is not None, "what is tried out waits for one other, not for all"
    compiler.close()
    assert all(one.done() for one in hostile)


def test_what_compiles_soon_is_not_tried() -> None:
    assert not is_risky(Choice(("a" * 100_000,)))
    assert not is_risky(Regex("[a-z]{1,10000}"))
    assert not is_risky(JsonSchema(json.dumps({"oneOf": [{"type": "integer"}, {"type": "string", "not": {"const": ""}}]})))
    assert not is_risky(JsonSchema(json.dumps({"type": "object", "properties": {"a": {"pattern": "a"}, "b": {"pattern": "b"}}})))


def test_what_was_tried_comes_back_prepared(small: GrammarCompiler) -> None:
    for constraint in (
        Ebnf('root ::= "a" root | "b"'),
        Regex("(?:a|b)" * 100),
        JsonSchema('{"not": {"type": "string"}}' + " " * 2_000),
    ):
        assert is_risky(constraint) and small._sandbox is not None
        assert small._sandbox.check(constraint, "") is not None


def test_what_is_far_too_long_is_refused_before_it_is_looked_up(small: GrammarCompiler) -> None:
    before = small.stats
    error = small.compile(JsonSchema('"' + "x" * (1 << 20) + '"')).exception(timeout=0)
    assert isinstance(error, LimitExceeded) and "1,048,578" in str(error)
    assert small.stats == before


def test_a_refusal_keeps_its_own_words_after_a_trial(small: GrammarCompiler) -> None:
    with pytest.raises(InvalidGrammar, match="unknown name"):
        small.compile(Ebnf("start: nowhere")).result(timeout=60)
    for attribute in ("temperature=0.5", "capture", 'capture="x"', "max_tokens=3, temperature=1"):
        with pytest.raises(InvalidGrammar, match="attribute"):
            small.compile(Ebnf(f"start[{attribute}]: /a/")).result(timeout=60)


def test_a_closed_compiler_leaves_no_process() -> None:
    compiler = GrammarCompiler(load_tokenizer(None, 300, ()).vocabulary)
    assert compiler.compile(Ebnf('start: "a"')).result(timeout=60) is not None
    assert compiler._sandbox is not None
    process = compiler._sandbox._process
    assert process is not None and process.poll() is None
    compiler.close()
    assert process.returncode is not None
    with pytest.raises(GrammarError):
        compiler.compile(Ebnf('start: "b"')).result(timeout=60)


def test_a_process_that_was_killed_is_begun_again(small: GrammarCompiler) -> None:
    small.compile(Ebnf('start: "one"')).result(timeout=60)
    assert small._sandbox is not None and small._sandbox._process is not None
    small._sandbox._process.kill()
    small._sandbox._process.wait()
    assert small.compile(Ebnf('start: "two"')).result(timeout=60) is not None


def test_long_options_are_looked_at_a_stretch_at_a_time(small: GrammarCompiler) -> None:
    text = "ab, " * 100_000
    grammar = small.compile(Choice((text, text + "c"))).result(timeout=60)
    assert isinstance(grammar, ChoiceGrammar)
    assert len(grammar.forced_bytes(grammar.start())[0]) == 4096
    matcher, made = grammar.matcher(), 0
    while forced := matcher.forced():
        made += matcher.advance(forced)
    assert made > len(text) - 10
    assert not ChoiceGrammar(grammar.vocabulary, [b"a" * 4096 + b"b"]).forced_bytes((0, 0, 1))[1]
    assert ChoiceGrammar(grammar.vocabulary, [b"a" * 4096]).forced_bytes((0, 0, 1)) == (b"a" * 4096, True)


def test_a_grammar_of_which_no_token_can_be_followed_is_refused() -> None:
    compiler = GrammarCompiler(load_tokenizer(None, 300, ()).vocabulary, 1, CompilerLimits(trial_seconds=0))
    rules = "\n".join(f'r{at} ::= [a-z]+ " " root | "{at}"' for at in range(700))
    with pytest.raises(LimitExceeded, match="max is"):
        compiler.compile(Ebnf(f"root ::= {' | '.join(f'r{at}' for at in range(700))}\n{rules}")).result(timeout=60)
    compiler.close()
