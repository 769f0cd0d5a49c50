"""C1 to C4 as far as the language does them: what is asked of the backend, and what comes of its scores."""

from collections.abc import Sequence
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.constrained.spec import Choice
from branchpoint.lang.backends.base import Capabilities, GenerateRequest, ScoreRequest
from branchpoint.lang.backends.fake import Reply


def run(expression: bp.Expr, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(lambda s: s.__iadd__("Answer:" + expression) and None).run(backend=backend, **options)


def test_c1_options_are_scored_in_one_request_and_the_best_goes_on() -> None:
    fake = bp.Fake("!", scores={" yes": -2.0, " no": -1.0})
    result = run(bp.select("x", [" yes", " no"]) + bp.gen("y"), fake)
    assert result["x"] == " no"
    assert result.text() == "Answer: no!"
    request = fake.requests[0]
    assert isinstance(request, ScoreRequest)
    assert request.options == (" yes", " no")
    assert not request.with_end
    assert len(fake.requests) == 2


def test_a_backend_that_can_not_score_writes_an_option_itself() -> None:
    fake = bp.Fake("b", capabilities=Capabilities(score=False))
    result = run("Answer: " + bp.select("x", ["a", "b"], temperature=0.5), fake)
    (request,) = fake.requests
    assert isinstance(request, GenerateRequest)
    assert request.constraint == Choice(("a", "b"))
    assert request.sampling.temperature == 0.5
    assert (result["x"], result.meta("x").method, result.meta("x").choices) == ("b", "mask", ())


@pytest.mark.parametrize(
    ("method", "constraints", "told"),
    [("token_length_normalized", {"choice"}, "can't score options"), ("total", set[str](), "neither score options")],
)
def test_c1_a_backend_that_can_not_score_refuses_what_it_can_not_hold(method: str, constraints: set[str], told: str) -> None:
    capabilities = Capabilities(score=False, constraints=frozenset(constraints))
    with pytest.raises(bp.ProgramError, match=told):
        run(bp.select("x", ["a"], choices_method=method), bp.Fake("a", capabilities=capabilities))


def test_an_option_that_was_not_written_whole_is_an_error() -> None:
    with pytest.raises(bp.ProgramError, match="none of the choices"):
        run(bp.select("x", ["yes"]), bp.Fake("ye", capabilities=Capabilities(score=False)))


@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        ("total", "b"),
        ("token_length_normalized", "long"),
        (bp.token_length_normalized, "long"),
        ("greedy_token_selection", "a!"),
        (lambda options: [len(option.text) for option in options], "long"),
    ],
)
def test_c2_methods_decide_as_their_names_say(method: Any, chosen: str) -> None:
    scores = {"a!": (-0.5, -9.0), "b": (-1.2,), "long": (-0.6, -0.4, -0.3, -0.3)}
    result = run(bp.select("x", ["a!", "b", "long"], choices_method=method), bp.Fake(scores=scores))
    assert result["x"] == chosen


def test_c2_the_default_is_total_and_the_report_says_so() -> None:
    result = run(bp.select("x", ["a", "b"]), bp.Fake(scores={"b": -0.5}))
    assert result.meta("x").method == "total"
    assert "select total" in str(result.report())


def test_c2_methods_ask_the_backend_for_what_they_need() -> None:
    def scores(request: ScoreRequest) -> Sequence[Sequence[float]]:
        asked.append((request.with_end, request.unconditional))
        if request.unconditional:
            return [[-5.0], [-0.1]]
        return [[-1.0, *([-9.0] * request.with_end)], [-1.5, *([-0.1] * request.with_end)]]

    asked: list[tuple[bool, bool]] = []
    fake = bp.Fake(scores=scores)
    assert run(bp.select("x", ["a", "b"], choices_method="total"), fake)["x"] == "a"
    assert run(bp.select("x", ["a", "b"], choices_method="total_with_end"), fake)["x"] == "b"
    assert run(bp.select("x", ["a", "b"], choices_method="unconditional_likelihood_normalized"), fake)["x"] == "a"
    assert asked == [(False, False), (True, False), (False, False), (False, True)]


def test_c3_meta_has_every_option() -> None:
    result = run(bp.select("x", ["a", "b"]), bp.Fake(scores={"a": -1.0, "b": -2.0}))
    first, second = result.meta("x").choices
    assert (first.text, first.logprobs, first.score) == ("a", (-1.0,), -1.0)
    assert first.probability + second.probability == pytest.approx(1)
    assert first.probability == pytest.approx(1 / (1 + 2.718281828**-1))


def test_c3_temperature_samples_from_the_options() -> None:
    program = bp.function(lambda s: s.__iadd__(bp.select("x", ["a", "b"], temperature=1.0)) and None)
    fake = bp.Fake(scores={"a": -1.0, "b": -2.0})
    values = [program.run(backend=fake, seed=seed)["x"] for seed in range(120)]
    assert values == [program.run(backend=fake, seed=seed)["x"] for seed in range(120)]
    assert 0.6 < values.count("a") / 120 < 0.85  # 0.731 is expected
    cold = bp.function(lambda s: s.__iadd__(bp.select("x", ["a", "b"], temperature=1e-3)) and None)
    assert {cold.run(backend=fake, seed=seed)["x"] for seed in range(20)} == {"a"}


def test_c3_a_seed_of_its_own_decides_whatever_that_of_the_run_is() -> None:
    fake = bp.Fake(scores={"a": -1.0, "b": -1.1})
    for seed in range(6):
        expression = bp.select("x", ["a", "b"], temperature=1.0, seed=seed)
        results = [run(expression, fake, seed=other) for other in range(6)]
        assert len({result["x"] for result in results}) == 1
        assert {result.meta("x").seed for result in results} == {seed}


def test_c3_a_temperature_of_the_run_does_not_reach_a_select() -> None:
    fake = bp.Fake(scores={"a": -1.0, "b": -1.1})
    assert {run(bp.select("x", ["a", "b"]), fake, temperature=5.0, seed=seed)["x"] for seed in range(20)} == {"a"}


def test_c3_the_value_is_byte_for_byte_an_option() -> None:
    options = [" Yes\n", "ﬁ", "e\u0301", "é"]
    for option in options:
        assert run(bp.select("x", options), bp.Fake(scores={option: -0.001}))["x"] == option


def test_c3_no_options_is_an_error_on_its_line() -> None:
    for empty in ([], ()):
        with pytest.raises(ValueError, match="at least one"):
            bp.select("x", empty)
    with pytest.raises(ValueError, match="at least one"):
        bp.gen("x", choices=[])


def test_c3_a_method_that_fails_fails_the_call() -> None:
    def method(options: Sequence[bp.ScoredOption]) -> list[float]:
        raise LookupError("mine")

    with pytest.raises(bp.ProgramError, match="mine") as caught:
        run(bp.select("x", ["a"], choices_method=method), bp.Fake())
    assert isinstance(caught.value.__cause__, LookupError)


def test_c4_gen_with_choices_selects_or_decodes_under_a_mask() -> None:
    fake = bp.Fake("b", scores={"a": -0.1})
    assert run(bp.gen("x", choices=["a", "b"]), fake)["x"] == "a"
    assert run(bp.gen("x", choices=["a", "b"], method="mask"), fake)["x"] == "b"
    with pytest.raises(bp.Incomplete):
        run(bp.gen("x", choices=["ab"], method="mask", max_tokens=1), bp.Fake("ab"))["x"]


def test_a_select_streams_its_choice() -> None:
    result = bp.function(lambda s: s.__iadd__(bp.select("x", ["a", "b"])) and None).stream(backend=bp.Fake(Reply()))
    assert list(result.text_iter("x")) == ["a"]
