"""F4: choosing between branches as they finish; the losers are aborted at once."""

from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text


def run(body: Any, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(body).run(backend=backend, **options)


def scripted(*answers: Any) -> bp.Fake:
    """Answers by the branch's number."""
    return bp.Fake(lambda request: answers[request.hints.path[-1]])


SLOW = Reply("slow" * 100, delay=5)


def test_f4_first_takes_the_first_that_fits_and_aborts_the_others() -> None:
    def body(s: bp.State) -> str:
        s += "Q"
        forks = s.fork(4)
        forks += bp.gen("x")
        winner = forks.first(lambda branch: branch["x"].startswith("yes"))
        assert winner is forks[2]
        for loser in (forks[0], forks[3]):
            with pytest.raises(bp.ProgramError, match="another branch was chosen"):
                loser += "more"
        assert forks[1]["x"] == "no"
        with pytest.raises(bp.ProgramError, match="another branch was chosen"):
            forks[0]["x"]
        winner += "!"
        assert winner.text() == "Qyes!"
        value: str = s["x"]
        return value

    fake = scripted(SLOW, "no", Reply("yes", delay=0.01), SLOW)
    result = run(body, fake)
    assert result.value == result["x"] == "yes"
    assert len(fake.aborted) == 2


def test_f4_a_block_around_a_choice_does_not_join() -> None:
    def body(s: bp.State) -> None:
        with s.fork(2) as forks:
            forks += bp.gen("x")
            forks.first()

    assert run(body, scripted(SLOW, "quick"))["x"] == "quick"


def test_f4_joining_after_a_choice_leaves_the_losers_out() -> None:
    def body(s: bp.State) -> list[Any]:
        forks = s.fork(3)
        forks += bp.gen("x")
        forks.first(lambda branch: branch["x"] == "b")
        forks.join()
        values: list[Any] = s["x"]
        return values

    assert run(body, scripted("a", Reply("b", delay=0.01), SLOW)).value == ["a", "b", None]


def test_f4_branches_that_fail_are_out() -> None:
    def body(s: bp.State) -> str:
        forks = s.fork(3)
        forks += bp.gen("x", int)
        return forks.first()["x"]  # type: ignore[no-any-return]

    assert run(body, scripted(bp.BackendError("broken"), Reply("1", delay=0.01), SLOW)).value == 1


def test_f4_a_choice_without_a_winner_raises_what_was_the_matter() -> None:
    def body(s: bp.State, none: bool) -> None:
        forks = s.fork(2)
        forks += bp.gen("x")
        forks.first(lambda branch: False) if none else forks.vote("x")

    program = bp.function(body)
    with pytest.raises(bp.ProgramError, match="None of 2 branches"):
        program.run(none=True, backend=bp.Fake("a"))
    with pytest.raises(bp.ProgramError, match="None of 2") as caught:
        program.run(none=False, backend=bp.Fake(bp.BackendError("broken")))
    assert "broken" in str(caught.value.__cause__)


def test_f4_what_a_choice_raises_itself_passes() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += bp.gen("x")
        forks.first(lambda branch: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run(body, bp.Fake("a"))


def test_f4_a_vote_ends_when_the_rest_can_not_change_it() -> None:
    def body(s: bp.State) -> Any:
        forks = s.fork(5)
        forks += bp.gen("x", int)
        return forks.vote("x")

    fake = scripted("1", "2", "2", Reply("2", delay=0.01), SLOW)
    result = run(body, fake)
    assert result.value == result["x"] == 2
    assert len(fake.aborted) == 1


@pytest.mark.parametrize(("answers", "value"), [(("a", "b", "b", "a"), "a"), (("b", "a", "a", "c"), "a"), (("c",), "c")])
def test_f4_of_equal_votes_the_earlier_branch_counts(answers: tuple[str, ...], value: str) -> None:
    def body(s: bp.State) -> Any:
        forks = s.fork(len(answers))
        forks += bp.gen("x")
        return forks.vote("x")

    assert run(body, scripted(*answers)).value == value


def test_f4_failed_branches_have_no_vote() -> None:
    def body(s: bp.State) -> Any:
        forks = s.fork(3)
        forks += bp.gen("x")
        return forks.vote("x")

    broken = bp.BackendError("broken")
    assert run(body, scripted(broken, "a", broken)).value == "a"


def test_f4_the_best_is_taken_or_the_first_that_is_good_enough() -> None:
    def body(s: bp.State, enough: float | None) -> str:
        forks = s.fork(3)
        forks += bp.gen("x")
        winner = forks.best(lambda branch: len(branch["x"]), enough)
        assert s["x"] == winner["x"]
        return winner["x"]  # type: ignore[no-any-return]

    program = bp.function(body)
    assert program.run(enough=None, backend=scripted("aa", "bbb", "ccc")).value == "bbb"
    fake = scripted("aa", Reply("bbb", delay=0.01), SLOW)
    assert program.run(enough=3, backend=fake).value == "bbb"
    assert len(fake.aborted) == 1


def test_f4_what_the_losers_said_is_counted_as_wasted() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += bp.gen("x")
        next(forks[0].text_iter("x"))
        forks.first(lambda branch: branch["x"] == "quick")

    async def script(request: GenerateRequest) -> Any:
        return Reply("abcdef" * 100, delay=0.002) if request.hints.path[-1] == 0 else Reply("quick", delay=0.01)

    report = run(body, bp.Fake(script)).report()
    (wasted,) = [record for record in report.records if record.wasted]
    assert 3 <= report.total.wasted == wasted.usage.completion_tokens < 600
    assert wasted.branch == (0,)


def test_f4_branches_without_calls_have_finished() -> None:
    def body(s: bp.State) -> str:
        forks = s.fork(2)
        forks += ["a", "b"]
        return forks.first().text()

    assert run(body, bp.Fake()).value == "a"


async def test_f4_choices_in_a_loop() -> None:
    @bp.function
    async def program(s: bp.State) -> list[Any]:
        values = []
        for kind in ("first", "vote", "best"):
            forks = s.fork(3)
            forks += kind + bp.gen("x")
            if kind == "first":
                values.append((await forks.afirst(lambda branch: branch["x"] == "b"))["x"])
            elif kind == "vote":
                values.append(await forks.avote("x"))
            else:
                values.append((await forks.abest(lambda branch: ord(branch["x"])))["x"])
        return values

    def script(request: GenerateRequest) -> Any:
        branch = request.hints.path[-1]
        if prompt_text(request) == "first" and branch > 0:
            return SLOW if branch == 2 else Reply("b", delay=0.01)
        return "abb"[branch]

    fake = bp.Fake(script)
    assert (await program.arun(backend=fake)).value == ["b", "b", "b"]
    assert len(fake.aborted) == 1


def test_f4_a_branch_given_up_takes_its_own_forks_with_it() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        (inner,) = forks[0].fork(1)
        inner += "inner" + bp.gen("y")
        forks[0] += bp.gen("x")
        forks[1] += bp.gen("x")
        forks.first()
        with pytest.raises(bp.ProgramError, match="another branch"):
            inner["y"]

    fake = bp.Fake(lambda request: "quick" if request.hints.path == (0, 1) else SLOW)
    run(body, fake)
    assert len(fake.aborted) == 2


@pytest.mark.parametrize("score", [None, "high", float("nan")])
def test_f4_a_score_that_is_no_number_is_refused(score: Any) -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += bp.gen("x")
        forks.best(lambda branch: score)

    with pytest.raises(bp.ProgramMistake, match="best needs a number"):
        bp.function(body).run(backend=bp.Fake("v"))
