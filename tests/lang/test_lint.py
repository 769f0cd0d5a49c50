"""P7: what `check` says of a program before any token is spent."""

import uuid
from typing import Any

import pytest

import branchpoint as bp

INSTRUCTIONS = "These are the instructions, which are the same for everybody. " * 4


def rules(body: Any, **given: Any) -> list[str]:
    return [finding.rule for finding in bp.function(body).check(**given)]


def test_p7_a_sound_program_has_no_findings() -> None:
    def body(s: bp.State, question: str) -> str:
        s += bp.system(INSTRUCTIONS) + bp.user(question)
        s += bp.assistant(bp.gen("x", regex="[a-z]+") + bp.select("y", [" yes", " no"]))
        return f"{s['x']}{s['y']}"

    fake = bp.Fake()
    assert rules(body, backend=fake) == []
    assert not fake.requests


def test_p7_an_unknown_variable_is_found_on_its_line() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x")
        s += f"{s['z']}"

    (finding,) = bp.function(body).check()
    assert finding.rule == "unknown-variable"
    assert finding.origin.line == body.__code__.co_firstlineno + 2
    assert "'z'" in str(finding)
    assert "test_lint.py:" in str(finding)


def test_p7_a_name_that_is_used_twice_is_found_where_the_first_value_is_lost() -> None:
    def lost(s: bp.State) -> None:
        s += bp.gen("x") + bp.gen("x")

    def read(s: bp.State) -> list[Any]:
        s += bp.gen("x")
        first = s["x"]
        s += bp.gen("x")
        return [first, s["x"]]

    def branches(s: bp.State) -> None:
        forks = s.fork(2)
        forks += bp.gen("x")

    assert rules(lost) == ["name-used-twice"]
    assert rules(read) == rules(branches) == []


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        (bp.select("x", ["a", "b", "a"]), "unreachable-choice"),
        (bp.select("x", ["New", "New York"]), "unreachable-choice"),
        (bp.select("x", ["New", "New York"], choices_method="token_length_normalized"), "prefix-choice"),
        (bp.gen("x", choices=["a", "a"], method="mask"), "unreachable-choice"),
        (bp.gen("x", regex=r"[^\s\S]"), "bad-pattern"),
        (bp.gen("x", regex="("), "bad-pattern"),
        (bp.gen("x", bp.regex(r"a[^\s\S]b")), "bad-pattern"),
        (bp.gen("x", regex="([A-z]+ ){3}"), "odd-class"),
        (bp.gen("x", regex="[^0-Z]"), "odd-class"),
        (bp.gen("x", regex="[:alpha:]+"), "odd-class"),
        (bp.gen("x", regex="x|[a|b]"), "odd-class"),
    ],
)
def test_p7_choices_and_patterns_that_can_not_be_meant(expression: bp.Expr, rule: str) -> None:
    assert rules(lambda s: s.__iadd__(expression) and None) == [rule]


@pytest.mark.parametrize(
    "expression",
    [
        bp.select("x", ["New", "New York"], choices_method="total_with_end"),
        bp.gen("x", choices=["New", "New York"], method="mask"),
        bp.gen("x", int),
        bp.gen("x", regex=r"[A-Za-z0-9_|.:-]+|[+-/|]|(a|b)|[|a]"),
    ],
)
def test_p7_choices_that_can_be_told_apart_are_fine(expression: bp.Expr) -> None:
    assert rules(lambda s: s.__iadd__(expression) and None) == []


def test_p7_many_choices_are_looked_at_in_little_time_and_the_shortest_beginning_is_named() -> None:
    many = [f"{number}." for number in range(20_000)]
    program = bp.function(lambda s: s.__iadd__(bp.select("x", [*many, "a", "ab", "abc", "7.5"])) and None)
    told = [str(finding) for finding in program.check()]
    assert len(told) == 3
    assert sum("'a' begins it" in each for each in told) == 2
    assert sum("'7.' begins it" in each for each in told) == 1


def test_p7_a_total_never_prefers_the_longer_of_two_that_begin_alike() -> None:
    run = bp.function(lambda s: s.__iadd__(bp.select("x", ["New York", "New"])) and None).run(
        backend=bp.Fake(scores={"New York": [-0.1] * 8, "New": [-0.1] * 3})
    )
    assert run["x"] == "New"


@pytest.mark.parametrize(
    "first",
    [
        lambda question: question,
        lambda question: str(uuid.uuid4()),
        lambda question: "Today is 2026-11-30.",
        lambda question: "Request 123e4567-e89b-12d3-a456-426614174000: ",
    ],
    ids=["argument", "different each time", "date", "id"],
)
def test_p7_changing_text_before_shared_text_is_found(first: Any) -> None:
    def before(s: bp.State, question: str) -> None:
        s += f"{first(question)}"
        s += bp.user(INSTRUCTIONS) + bp.gen("x")

    def after(s: bp.State, question: str) -> None:
        s += INSTRUCTIONS
        s += f"{first(question)}" + bp.gen("x") + INSTRUCTIONS

    assert rules(before) == ["changing-before-shared"]
    assert rules(after) == []


def test_p7_a_prompt_that_is_longer_than_the_context_is_found() -> None:
    def body(s: bp.State) -> None:
        s += "x" * 50 + bp.gen("a")
        forks = s.fork(2)
        forks += ["y" * 60, "y"]
        forks += bp.gen("b")

    (finding,) = bp.function(body).check(backend=bp.Fake(context_length=100))
    assert finding.rule == "prompt-too-long"
    assert "110 tokens" in finding.message
    assert rules(body, backend=bp.Fake(context_length=1000)) == rules(body) == []


def test_p7_what_is_no_graph_is_checked_as_far_as_it_goes() -> None:
    def body(s: bp.State) -> None:
        s += bp.select("x", ["a", "a"])
        if s["x"] == "a":
            s += "more"

    assert rules(body) == ["unreachable-choice", "not-a-graph"]


def test_p7_a_parameter_may_be_called_backend() -> None:
    assert rules(lambda s, backend: s.__iadd__(f"{backend}") and None, backend="x") == []
