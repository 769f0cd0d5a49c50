"""C2 and C3: the methods of `select`, against their definitions written out plainly."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import branchpoint as bp
from branchpoint.lang.choices import ChoicesMethod, ScoredOption, decide, method_of

logprobs = st.lists(st.floats(-30, 0), min_size=1, max_size=6)


@st.composite
def scored(draw: st.DrawFn) -> list[ScoredOption]:
    options = []
    for number in range(draw(st.integers(1, 6))):
        row = tuple(draw(logprobs))
        bare = tuple(draw(st.lists(st.floats(-30, 0), min_size=len(row), max_size=len(row))))
        options.append(ScoredOption(f"option {number}", row, draw(st.floats(-30, 0)), bare))
    return options


def shared(*rows: Sequence[float]) -> list[ScoredOption]:
    return [ScoredOption(str(number), tuple(row)) for number, row in enumerate(rows)]


def greedy_by_definition(rows: list[tuple[float, ...]]) -> list[int]:
    """Who is left after each step keeps the best only; rows that have ended go on with their mean."""
    steps = max(map(len, rows))
    matrix = np.array([[*row, *[np.mean(row)] * (steps - len(row))] for row in rows])
    left = np.arange(len(rows))
    for step in range(steps):
        column = matrix[left, step]
        left = left[column >= column.max() - 1e-5]
    return [int(index) for index in left]


@given(scored())
def test_each_method_gives_what_its_definition_says(options: list[ScoredOption]) -> None:
    rows = [np.array(option.logprobs) for option in options]
    bare = [np.array(option.unconditional) for option in options]
    expected = {
        "total": [row.sum() for row in rows],
        "total_with_end": [row.sum() + option.end for row, option in zip(rows, options, strict=True)],
        "token_length_normalized": [row.mean() for row in rows],
        "unconditional_likelihood_normalized": [(row - other).mean() for row, other in zip(rows, bare, strict=True)],
    }
    for name, scores in expected.items():
        decision = decide(method_of(name), options)
        assert decision.scores == pytest.approx(scores)
        assert decision.scores[decision.choice] == max(decision.scores)


@given(scored())
def test_greedy_selection_takes_the_first_that_is_left(options: list[ScoredOption]) -> None:
    decision = decide(bp.greedy_token_selection, options)
    left = greedy_by_definition([option.logprobs for option in options])
    assert decision.choice == left[0]
    best = max(decision.scores)
    assert [index for index, score in enumerate(decision.scores) if score == best] == left


@given(scored(), st.sampled_from(["total", "total_with_end", "token_length_normalized", "greedy_token_selection"]))
def test_probabilities_add_up_and_follow_the_scores(options: list[ScoredOption], name: str) -> None:
    decision = decide(method_of(name), options)
    assert math.fsum(decision.probabilities) == pytest.approx(1)
    order = sorted(range(len(options)), key=lambda index: decision.scores[index])
    sizes = [decision.probabilities[index] for index in order]
    assert sizes == sorted(sizes)


def test_greedy_selection_goes_step_by_step() -> None:
    assert decide(bp.greedy_token_selection, shared((-0.5, -9.0), (-0.6, -0.1))).choice == 0
    assert decide(bp.greedy_token_selection, shared((-0.5, -9.0), (-0.5, -0.1))).choice == 1


def test_ties_within_a_hundred_thousandth_are_ties() -> None:
    near = shared((-0.5, -0.3), (-0.5 + 9e-6, -0.4), (-0.5 + 2e-6, -0.2))
    assert decide(bp.greedy_token_selection, near).choice == 2
    apart = shared((-0.5, -0.3), (-0.5 + 2e-5, -0.4))
    assert decide(bp.greedy_token_selection, apart).choice == 1
    assert decide(bp.greedy_token_selection, shared((-0.5,), (-0.5,))).choice == 0


def test_an_option_that_begins_another_goes_on_with_its_mean() -> None:
    assert decide(bp.greedy_token_selection, shared((-0.5,), (-0.5, -0.6))).choice == 0
    assert decide(bp.greedy_token_selection, shared((-0.5,), (-0.5, -0.4))).choice == 1


def test_impossible_options_lose_and_all_impossible_ones_are_even() -> None:
    never = -math.inf
    for name in ("total", "token_length_normalized", "greedy_token_selection"):
        decision = decide(method_of(name), shared((never,), (-5.0,), (never, -1.0)))
        assert decision.choice == 1
        assert all(map(math.isfinite, decision.probabilities))
    assert decide(bp.total, shared((never,), (never,))).probabilities == (0.5, 0.5)


def test_total_with_end_prefers_what_is_likely_to_end_there() -> None:
    options = [ScoredOption("1", (-0.5,), -4.0), ScoredOption("10", (-0.5, -1.0), -0.1)]
    assert decide(bp.total, options).choice == 0
    assert decide(bp.total_with_end, options).choice == 1


def test_names_objects_and_functions_are_methods() -> None:
    assert method_of("total") is bp.total
    assert method_of(bp.total) is bp.total

    def shortest(options: Sequence[ScoredOption]) -> list[float]:
        return [-len(option.text) for option in options]

    method = method_of(shortest)
    assert method.name == "shortest"
    assert decide(method, [ScoredOption("aaa", (-1.0,)), ScoredOption("a", (-9.0,))]).choice == 1
    numpy_method = method_of(lambda options: np.array([0.1, 0.2]))
    assert decide(numpy_method, shared((-1.0,), (-1.0,))).choice == 1
    with pytest.raises(bp.ProgramMistake, match="token_length_normalized, greedy_token_selection"):
        method_of("best")


@pytest.mark.parametrize("given_back", [None, [], [1.0], ["a", "b"], [math.nan, 1.0], 3.0])
def test_a_method_that_gives_no_scores_is_named(given_back: Any) -> None:
    def mine(options: Sequence[ScoredOption]) -> Any:
        return given_back

    with pytest.raises(bp.ProgramMistake, match="mine must give a number for each"):
        decide(method_of(mine), shared((-1.0,), (-2.0,)))


def test_a_method_says_what_it_needs() -> None:
    seen: list[ScoredOption] = []

    def mine(options: Sequence[ScoredOption]) -> list[float]:
        seen.extend(options)
        return [0.0] * len(options)

    def program(s: bp.State) -> None:
        s += "x" + bp.select("y", ["a", "b"], choices_method=ChoicesMethod("mine", mine, with_end=True, unconditional=True))

    bp.function(program).run(backend=bp.Fake(scores={"a": -1.0}))
    assert [(option.text, option.end, option.unconditional) for option in seen] == [("a", -0.1, (-1.0,)), ("b", -0.1, (-1.0,))]
