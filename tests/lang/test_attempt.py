"""S10 and the scope of P5: marks, rolling back, attempts, and what is done aside."""

import asyncio
import time
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text


def run(body: Any, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(body).run(backend=backend, **options)


def test_s10_text_variables_and_role_go_back() -> None:
    def body(s: bp.State) -> None:
        s += "Q" + bp.gen("x")
        mark = s.mark()
        s += bp.user_begin() + "wrong" + bp.gen("x") + bp.gen("y")
        s["z"] = 1
        assert s["y"] == "b"
        s.rollback(mark)
        assert s.variables() == ("x",)
        assert s["x"] == "a"
        assert s.text() == "Qa"
        s += bp.user("right") + bp.gen("w")

    fake = bp.Fake(["a", "-", "b", "c"])
    result = run(body, fake)
    assert fake.prompts[-1] == "Qa<|im_start|>user\nright<|im_end|>\n"
    assert result.variables() == ("x", "w")
    assert "".join(result.text_iter()) == result.text()


def test_s10_what_comes_next_reuses_all_before_the_mark() -> None:
    def body(s: bp.State) -> int:
        s += "a long prefix" + bp.gen("x")
        mark = s.mark()
        s += " no" + bp.gen("y")
        s["y"]
        s.rollback(mark)
        s += " yes" + bp.gen("z")
        return s.meta("z").cached_tokens

    assert run(body, bp.Fake("abc")).value == len("a long prefixabc ")


def test_s10_rolling_back_aborts_what_runs_and_counts_what_was_wasted() -> None:
    async def script(request: GenerateRequest) -> Any:
        return Reply("abcdef" * 50, delay=0.005) if prompt_text(request).endswith("slow") else "quick"

    def body(s: bp.State) -> str:
        mark = s.mark()
        s += "slow" + bp.gen("x")
        next(s.text_iter("x"))
        s.rollback(mark)
        mark = s.mark()
        s += "Q" + bp.gen("x")
        s["x"]
        s.rollback(mark)
        s += "then" + bp.gen("y")
        value: str = s["y"]
        return value

    fake = bp.Fake(script)
    result = run(body, fake)
    assert result.value == "quick"
    assert result.text() == "thenquick"
    assert len(fake.aborted) == 1
    cut, whole, kept = result.report().records
    assert (cut.wasted, whole.wasted, kept.wasted) == (True, True, False)
    assert 3 <= cut.usage.completion_tokens < 300
    assert result.report().total.wasted == cut.usage.completion_tokens + len("quick")
    assert "wasted" in str(result.report())


def test_s10_a_failure_is_forgotten_with_what_failed() -> None:
    def body(s: bp.State) -> str:
        mark = s.mark()
        s += bp.gen("x")
        assert s.error() is not None
        s.rollback(mark)
        s += bp.gen("x")
        value: str = s["x"]
        return value

    assert run(body, bp.Fake([bp.BackendError("broken"), "fine"])).value == "fine"


def test_s10_an_unseen_failure_that_was_rolled_back_fails_nothing() -> None:
    def body(s: bp.State) -> str:
        mark = s.mark()
        s += bp.gen("x")
        while not fake.requests:
            time.sleep(0.001)
        s.rollback(mark)
        return "fine"

    fake = bp.Fake([bp.BackendError("broken")])
    assert run(body, fake).value == "fine"


def test_s10_forks_of_what_was_rolled_back_go_too() -> None:
    def body(s: bp.State) -> None:
        before = s.copy()
        mark = s.mark()
        s += "wrong"
        (branch,) = s.fork(1)
        branch += bp.gen("x")
        s.rollback(mark)
        with pytest.raises(bp.ProgramError, match="rolled back"):
            branch += "more"
        with pytest.raises(bp.ProgramError, match="rolled back"):
            branch["x"]
        (other,) = s.fork(1)
        other += bp.gen("x")
        before += bp.gen("x")
        assert other.text() == before.text() == "b"

    fake = bp.Fake(lambda request: Reply("a", delay=60) if prompt_text(request) else "b")
    run(body, fake)


def test_s10_a_mark_is_of_its_state_and_can_be_lost() -> None:
    def body(s: bp.State) -> None:
        first = s.mark()
        s += "a"
        second = s.mark()
        with pytest.raises(bp.ProgramMistake, match="this state made"):
            s.copy().rollback(second)
        s.rollback(first)
        with pytest.raises(bp.ProgramMistake, match="rolled back"):
            s.rollback(second)
        s += "b"
        with pytest.raises(bp.ProgramMistake, match="rolled back"):
            s.rollback(second)
        s.rollback(first)
        s.rollback(first)
        assert s.text() == ""

    run(body, bp.Fake())


def test_s10_an_attempt_adds_again_until_the_check_holds() -> None:
    def body(s: bp.State) -> str:
        s += "Q"
        with s.attempt(retries=3, check=lambda s: s["n"] > 5):
            s += bp.user("number?") + bp.assistant(bp.gen("n", int))
        s += "!"
        return s.text()

    fake = bp.Fake(["1", "2", "7"])
    result = run(body, fake)
    assert result.value == "Q<|im_start|>user\nnumber?<|im_end|>\n<|im_start|>assistant\n7<|im_end|>\n!"
    assert len({request.sampling.seed for request in fake.requests}) == 3  # type: ignore[union-attr]
    assert len(set(fake.prompts)) == 1
    assert result.report().total.wasted == 2
    assert {record.origin.line for record in result.report().records} == {result.report().records[0].origin.line}


def test_s10_an_attempt_holds_when_nothing_failed_and_values_are_whole() -> None:
    def body(s: bp.State) -> int:
        with s.attempt():
            s += bp.gen("n", int, max_tokens=3)
        value: int = s["n"]
        return value

    assert run(body, bp.Fake([bp.BackendError("broken"), "12345", "77"])).value == 77


def test_s10_an_attempt_that_never_holds_leaves_the_state_as_it_was() -> None:
    def body(s: bp.State) -> str:
        s += "Q"
        with pytest.raises(bp.ProgramError, match="None of 3 tries"), s.attempt(retries=2, check=lambda s: False):
            s += bp.gen("x")
        assert "x" not in s
        return s.text()

    fake = bp.Fake("a")
    assert run(body, fake).value == "Q"
    assert len(fake.requests) == 3


def test_s10_an_exception_in_an_attempt_passes_and_takes_the_text_back() -> None:
    def body(s: bp.State) -> str:
        with pytest.raises(LookupError), s.attempt():
            s += "gone"
            raise LookupError
        return s.text()

    assert run(body, bp.Fake()).value == ""


def test_s10_a_block_that_does_more_than_adding_is_run_again_by_a_loop() -> None:
    def body(s: bp.State) -> list[int]:
        start = s.mark()
        with pytest.raises(bp.ProgramMistake, match=r"for _ in s\.attempt"), s.attempt(check=lambda s: False):
            s += "a"
            s["y"] = 1
        s.rollback(start)
        tries = []
        for number in s.attempt(retries=5, check=lambda s: s["x"] == ["c", "d"]):
            tries.append(number)
            with s.fork(2) as forks:
                forks += bp.gen("x")
        return tries

    async def script(request: GenerateRequest) -> str:
        return "abcd"[2 * (request.hints.path[0]) + request.hints.path[1]] if request.hints.path[0] < 2 else "e"

    assert run(body, bp.Fake(script)).value == [0, 1]


def test_s10_a_loop_that_never_holds_raises_too() -> None:
    def body(s: bp.State) -> None:
        for _ in s.attempt(retries=1):
            s += bp.gen("x")

    with pytest.raises(bp.ProgramError, match="None of 2 tries") as caught:
        run(body, bp.Fake([bp.BackendError("one"), bp.BackendError("two")]))
    assert "two" in str(caught.value.__cause__)
    with pytest.raises(bp.ProgramMistake, match="retries"):
        run(lambda s: s.attempt(retries=-1) and None, bp.Fake())


async def test_s10_readers_go_on_with_what_comes_in_place() -> None:
    async def script(request: GenerateRequest) -> Any:
        return Reply("wrong" * 50, delay=0.002) if not request.hints.path and fake.requests[0] is request else "right"

    def body(s: bp.State) -> None:
        mark = s.mark()
        s += bp.gen("x")
        next(s.text_iter("x"))
        s.rollback(mark)
        s += bp.gen("y")

    fake = bp.Fake(script)
    result = bp.function(body).stream(backend=fake)
    live = "".join([piece async for piece in result.text_async_iter()])
    assert live.endswith("right")
    assert "".join([piece async for piece in result.text_async_iter()]) == "right"
    assert await asyncio.to_thread(result.text) == "right"


def test_p5_a_scope_leaves_nothing_behind_but_what_is_returned() -> None:
    @bp.function
    def inner(s: bp.State) -> str:
        with s.scope() as t:
            t += " aside" + bp.gen("x")
            value: str = t["x"]
            return value

    def body(s: bp.State) -> str:
        s += "Q"
        s["y"] = inner(s)
        assert "x" not in s
        s += "!" + bp.gen("z")
        return s.text()

    fake = bp.Fake(["a", "b"])
    result = run(body, fake)
    assert result.value == "Q!b"
    assert (result["y"], fake.prompts[0]) == ("a", "Q aside")
    assert result.variables() == ("y", "z")


def test_p5_an_exception_aborts_what_a_scope_still_does() -> None:
    def body(s: bp.State) -> str:
        with pytest.raises(LookupError), s.scope() as t:
            t += bp.gen("x")
            raise LookupError
        return "done"

    assert run(body, bp.Fake(Reply("a", delay=60))).value == "done"
