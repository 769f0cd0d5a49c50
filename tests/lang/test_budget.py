"""B1: a run's budget of tokens and of time, shared by all its forks."""

import time
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.fake import Reply
from branchpoint.runtime.errors import InvalidRequest


def run(body: Any, backend: bp.Backend, **limits: Any) -> Any:
    return bp.function(body).run(backend=backend, config=bp.RunConfig(**limits))


def test_b1_a_gen_that_meets_the_end_is_cut_and_incomplete() -> None:
    def body(s: bp.State) -> str:
        s += bp.gen("x")
        with pytest.raises(bp.Incomplete, match="budget of 5 tokens") as caught:
            s["x"]
        assert isinstance(caught.value, bp.ProgramError)
        assert caught.value.variable == "x"
        return caught.value.partial

    fake = bp.Fake("abcdefgh")
    result = run(body, fake, max_total_tokens=5)
    assert result.value == "abcde"
    assert fake.requests[0].sampling.max_tokens == 5  # type: ignore[union-attr]
    assert result.report().total.wasted == 5


def test_b1_a_gen_that_ends_by_itself_within_the_budget_is_whole() -> None:
    def body(s: bp.State) -> list[str]:
        s += bp.gen("x") + bp.gen("y", max_tokens=2)
        return [s["x"], s["y"]]

    assert run(body, bp.Fake("abc"), max_total_tokens=10).value == ["abc", "ab"]


def test_b1_prompts_count_once_they_are_known() -> None:
    def body(s: bp.State) -> None:
        s += "0123456789" + bp.gen("x")
        s += "." + bp.gen("y")

    with pytest.raises(bp.OutOfBudget, match="gen 'y'"):
        run(body, bp.Fake("abc"), max_total_tokens=13)


def test_b1_nothing_is_sent_once_the_budget_is_spent() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x", max_tokens=5) + bp.select("y", ["a", "b"])

    fake = bp.Fake("abcdefgh")
    with pytest.raises(bp.OutOfBudget, match="select 'y'"):
        run(body, fake, max_total_tokens=5)
    assert len(fake.requests) == 1
    with pytest.raises(bp.OutOfBudget):
        run(body, bp.Fake("a"), max_total_tokens=0)


def test_b1_the_budget_is_shared_by_all_forks() -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(3)
        forks += bp.gen("x")
        partial = []
        for fork in forks:
            with pytest.raises(bp.OutOfBudget) as caught:
                fork["x"]
            partial.append(caught.value.partial)
        return partial

    fake = bp.Fake(Reply("abcdefgh" * 100, delay=0.001))
    result = run(body, fake, max_total_tokens=30)
    assert 30 <= sum(map(len, result.value)) <= 36
    assert len(fake.aborted) == 3
    assert result.report().total.wasted == result.report().total.decoded <= 39


def test_b1_a_cut_call_fails_a_run_that_does_not_look() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x")

    with pytest.raises(bp.OutOfBudget, match="So far: 'abc'"):
        run(body, bp.Fake("abcdef"), max_total_tokens=3)


def test_b1_a_deadline_cuts_what_runs() -> None:
    def body(s: bp.State) -> str:
        s += bp.gen("x")
        forks = s.fork(2)
        forks += bp.gen("y")
        with pytest.raises(bp.OutOfBudget, match=r"deadline of 0\.1 seconds") as caught:
            s["x"]
        for fork in forks:
            with pytest.raises(bp.OutOfBudget):
                fork["y"]
        return caught.value.partial

    fake = bp.Fake(Reply("abcdef" * 100, delay=0.02))
    begin = time.monotonic()
    value = run(body, fake, deadline=0.1).value
    assert time.monotonic() - begin < 2
    assert value.startswith("abc")
    assert len(fake.requests) == len(fake.aborted) == 1


def test_b1_a_stream_ends_with_the_cut() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x")

    result = bp.function(body).stream(backend=bp.Fake("abcdef"), config=bp.RunConfig(max_total_tokens=4))
    read = []
    with pytest.raises(bp.OutOfBudget):
        for piece in result.text_iter():
            read.append(piece)  # noqa: PERF402  # what came before the error is looked at
    assert "".join(read) == "abcd"


@pytest.mark.parametrize("limits", [{"max_total_tokens": -1}, {"deadline": -1.0}, {"deadline": float("inf")}])
def test_b1_impossible_limits_are_refused(limits: Any) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(limits))):
        bp.RunConfig(**limits)
