"""S11: a failed call fails its state and what came out of it, nothing else; nothing hangs, no thread stays."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Delta, Event


def run(body: Any, backend: bp.Backend, **options: Any) -> Any:
    return bp.function(body).run(backend=backend, **options)


def failing(request: GenerateRequest) -> Any:
    return bp.BackendError("broken", status=500) if prompt_text(request).endswith("bad") else "fine"


def test_s11_everything_after_a_failure_raises() -> None:
    def body(s: bp.State) -> list[str]:
        s += "good" + bp.gen("a")
        s += "bad" + bp.gen("b")
        s += "more" + bp.gen("c")
        fake.dispatcher.post(gate.set)
        reads = [lambda: s["b"], lambda: s["c"], s.text, s.messages, lambda: s.meta("c"), s.sync, lambda: s["never set"]]
        for read in reads:
            with pytest.raises(bp.ProgramError, match="gen 'b'") as caught:
                read()
            assert caught.value.variable == "b"
            assert isinstance(caught.value.__cause__, bp.BackendError)
        with pytest.raises(bp.ProgramError, match="gen 'b'"):
            s += "too late"
        with pytest.raises(bp.ProgramError, match="gen 'b'"):
            s += bp.gen("d")
        with pytest.raises(bp.ProgramError, match="gen 'b'"):
            s.fork(2)
        with pytest.raises(bp.ProgramError, match="gen 'b'"):
            s.copy()
        return [s["a"]]

    async def script(request: GenerateRequest) -> Any:
        await gate.wait()
        return failing(request)

    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == ["fine"]
    assert len(fake.requests) == 2


def test_s11_a_failure_that_was_handled_does_not_fail_the_run() -> None:
    def body(s: bp.State) -> str:
        s += "bad" + bp.gen("a")
        try:
            value: str = s["a"]
        except bp.ProgramError:
            return "handled"
        return value

    result = run(body, bp.Fake(failing))
    assert result.value == "handled"
    with pytest.raises(bp.ProgramError):
        result["a"]
    with pytest.raises(bp.ProgramError):
        result.text()


def test_s11_a_failure_that_was_seen_in_a_stream_does_not_fail_the_run() -> None:
    def body(s: bp.State) -> str:
        s += "bad" + bp.gen("a")
        for stream in (s.text_iter(), s.text_iter("a")):
            with pytest.raises(bp.ProgramError):
                list(stream)
        return "handled"

    assert run(body, bp.Fake(failing)).value == "handled"


def test_s11_a_failure_that_nobody_read_fails_the_run() -> None:
    def body(s: bp.State) -> str:
        forks = s.fork(2)
        forks += ["good", "bad"]
        forks += bp.gen("x")
        return "done"

    with pytest.raises(bp.ProgramError, match="branch 1") as caught:
        run(body, bp.Fake(failing))
    assert caught.value.branch == (1,)


def test_s11_other_branches_finish() -> None:
    def body(s: bp.State) -> list[Any]:
        s += "Q"
        forks = s.fork(3)
        forks += ["good", "bad", "good"]
        forks += bp.gen("x")
        assert forks[1].error() is not None
        forks += " and" + bp.gen("y")
        assert forks[0].error() is None
        with pytest.raises(bp.ProgramError):
            forks[1]["y"]
        s += bp.gen("after")
        return [forks[0]["y"], forks[2]["y"], s["after"]]

    assert run(body, bp.Fake(failing)).value == ["fine", "fine", "fine"]


def test_s11_forks_that_came_out_of_a_failed_state_fail_and_earlier_ones_do_not() -> None:
    def body(s: bp.State) -> str:
        (before,) = s.fork(1)
        before += "good" + bp.gen("x")
        s += "bad" + bp.gen("y")
        with s.fork(2) as forks:
            forks += bp.gen("z")
            (inner,) = forks[1].fork(1)
            inner += bp.gen("z")
        fake.dispatcher.post(gate.set)
        for state in (*forks, inner):
            with pytest.raises(bp.ProgramError, match="gen 'y'"):
                state["z"]
        value: str = before["x"]
        return value

    async def script(request: GenerateRequest) -> Any:
        await gate.wait()  # the program goes on before the call fails
        return failing(request)

    gate = asyncio.Event()
    fake = bp.Fake(script)
    assert run(body, fake).value == "fine"
    assert len(fake.requests) == 2


def test_s11_run_raises_at_once_without_waiting_for_slow_branches() -> None:
    def body(s: bp.State) -> None:
        forks = s.fork(2)
        forks += ["bad", "slow"]
        forks += bp.gen("x")

    async def script(request: GenerateRequest) -> Any:
        while len(fake.requests) < 2:
            await asyncio.sleep(0)
        return Reply("x", delay=60) if prompt_text(request) == "slow" else failing(request)

    fake = bp.Fake(script)
    with pytest.raises(bp.ProgramError, match="broken"):
        run(body, fake)
    assert len(fake.aborted) == 1


def test_s11_the_errors_of_the_engine_keep_their_kind() -> None:
    with pytest.raises(bp.ProgramError, match="too long") as caught:
        run(lambda s: s.__iadd__(bp.gen("x")) and None, bp.Fake(InvalidRequest("too long", param="prompt")))
    assert isinstance(caught.value.__cause__, InvalidRequest)
    assert caught.value.status is None


def test_s11_a_failure_in_the_middle_of_a_text_is_no_value() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x")

    result = bp.function(body).stream(backend=bp.Fake(Reply("abcdef", error=bp.BackendError("cut off"))))
    pieces = []
    with pytest.raises(bp.ProgramError, match="cut off"):
        pieces.extend(result.text_iter("x"))
    with pytest.raises(bp.ProgramError, match="cut off"):
        result["x"]


def test_s11_a_backend_that_ends_too_early_fails_the_call() -> None:
    class Silent(bp.Fake):
        async def generate(self, request: GenerateRequest) -> Any:
            return
            yield

    class Short(bp.Fake):
        async def score(self, request: Any) -> Any:
            return (await super().score(request)).__class__(request.id, (), None)  # type: ignore[arg-type]

    with pytest.raises(bp.ProgramError, match="without a terminal"):
        run(lambda s: s.__iadd__(bp.gen("x")) and None, Silent())
    with pytest.raises(bp.ProgramError, match="scored 0 options, 1"):
        run(lambda s: s.__iadd__(bp.select("x", ["a"])) and None, Short())


def test_s11_a_state_can_be_read_but_not_added_to_after_its_run() -> None:
    kept: list[bp.State] = []

    def body(s: bp.State) -> None:
        s += bp.gen("x")
        kept.append(s)

    run(body, bp.Fake("abc"))
    assert kept[0]["x"] == kept[0].text() == "abc"
    with pytest.raises(bp.ProgramError, match="is over"):
        kept[0] += "more"
    with pytest.raises(bp.ProgramError, match="is over"):
        kept[0].fork(1)


def test_s11_no_thread_stays_whatever_happens() -> None:
    def good(s: bp.State) -> None:
        s += bp.gen("x")

    def raising(s: bp.State) -> None:
        s += bp.gen("x")
        raise LookupError

    def bad(s: bp.State) -> None:
        s += "bad" + bp.gen("x")

    before = threading.active_count()
    fake = bp.Fake(failing)
    for body in (good, raising, bad):
        for stream in (False, True):
            try:
                run(body, fake, stream=stream).wait()
            except (LookupError, bp.ProgramError):
                continue
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() <= before  # what an earlier test left may have ended meanwhile


def test_s11_many_states_need_no_more_threads() -> None:
    def body(s: bp.State) -> list[str]:
        forks = s.fork(500)
        forks += lambda number: f"{number} " + bp.gen("x")
        forks += bp.gen("y")
        counts.append(threading.active_count())
        forks.join()
        counts.append(threading.active_count())
        values: list[str] = s["y"]
        return values

    counts: list[int] = []
    before = threading.active_count()
    assert run(body, bp.Fake("abc", piece=1)).value == ["abc"] * 500
    assert max(counts) == before + 1


def test_s11_a_failure_deep_in_a_long_ledger_reaches_its_end() -> None:
    def body(s: bp.State) -> None:
        s += "bad"
        for _ in range(3000):
            s += bp.gen("x")
        fake.dispatcher.post(gate.set)
        with pytest.raises(bp.ProgramError):
            s["x"]

    async def script(request: GenerateRequest) -> Any:
        await gate.wait()
        return failing(request)

    gate = asyncio.Event()
    fake = bp.Fake(script)
    run(body, fake)
    assert len(fake.requests) == 1


def test_s11_a_role_closes_although_the_state_failed() -> None:
    def body(s: bp.State) -> None:
        with s.assistant():
            s += "bad" + bp.gen("x")
            s["x"]

    with pytest.raises(bp.ProgramError, match="gen 'x'"):
        run(body, bp.Fake(failing))


def test_s11_a_foreign_backend_brings_no_dispatcher_and_leaves_none() -> None:
    class Foreign:
        def __init__(self) -> None:
            inner = bp.Fake("abc")
            self.capabilities, self.generate, self.score, self.render = (
                inner.capabilities,
                inner.generate,
                inner.score,
                inner.render,
            )

        async def close(self) -> None:
            return

    def body(s: bp.State) -> str:
        s += bp.user("Q") + bp.assistant(bp.gen("x"))
        value: str = s["x"]
        return value

    before = threading.active_count()
    backend: Any = Foreign()
    assert run(body, backend).value == "abc"
    assert run(body, backend).text().endswith("abc<|im_end|>\n")
    assert threading.active_count() == before


def test_s11_a_run_can_be_cancelled() -> None:
    fake = bp.Fake(Reply("abc", delay=60))
    result = run(lambda s: s.__iadd__(bp.gen("x")) and s["x"], fake, stream=True)
    while not fake.requests:
        time.sleep(0.001)
    result.cancel()
    with pytest.raises(bp.ProgramError, match="aborted"):
        result.wait()
    assert fake.aborted


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_s11_whatever_ends_a_streamed_program_reaches_its_readers_and_ends_no_loop(kind: type[BaseException]) -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x")
        s.sync()
        raise kind("mine")

    fake = bp.Fake("v")
    run = bp.function(body).stream(backend=fake)
    with pytest.raises(kind, match="mine"):
        run.wait()
    with pytest.raises(kind, match="mine"):
        list(run.branches_iter())
    assert bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).run(backend=fake)["x"] == "v"


def test_s11_a_call_that_is_aborted_with_its_run_says_what_the_run_ended_with() -> None:
    def body(s: bp.State) -> None:
        s += bp.gen("x")
        raise LookupError("mine")

    run = bp.function(body).stream(backend=bp.Fake(Reply("v", delay=60.0)))
    with pytest.raises(bp.ProgramError, match="the run ended with LookupError: mine"):
        list(run.text_iter("x"))


@pytest.mark.parametrize("place", ["pick", "method", "backend"])
def test_s11_user_code_in_the_loop_that_exits_fails_its_call_alone(place: str) -> None:
    def leave(*given: object) -> Any:
        raise SystemExit("mine")

    calls = {
        "pick": bp.gen("x", n=2, pick=leave),
        "method": bp.select("x", ["a", "b"], choices_method=leave),
        "backend": bp.gen("x"),
    }
    fake = bp.Fake(leave if place == "backend" else "v")
    with pytest.raises(bp.ProgramError, match="mine"):
        bp.function(lambda s: s.__iadd__("Q" + calls[place]) and None).run(backend=fake)
    assert bp.function(lambda s: s.__iadd__("Q" + bp.select("x", ["a"])) and None).run(backend=fake)["x"] == "a"


def test_s11_a_backend_that_gives_a_sample_too_many_is_told() -> None:
    class Wrong(bp.Fake):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
            yield Delta(request.id, 5, "a")

    with pytest.raises(bp.ProgramError, match="gave sample 5; 1 were asked for"):
        bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).run(backend=Wrong())


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_s11_an_exhausted_iterator_ends_an_awaited_program(asynchronous: bool) -> None:
    def plain(s: bp.State) -> None:
        next(iter(()))

    async def in_a_loop(s: bp.State) -> None:
        next(iter(()))

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(bp.function(in_a_loop if asynchronous else plain).arun(backend=bp.Fake("v")), 10)


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("it says nothing")


def test_s11_an_error_that_cant_be_told_is_told_by_its_name() -> None:
    def asks(s: bp.State) -> None:
        s += bp.gen("x")

    def raises(s: bp.State) -> None:
        s += bp.gen("x")
        raise Mute

    with pytest.raises(bp.ProgramError, match="Mute"):
        run(asks, bp.Fake(Mute()))
    streamed = bp.function(raises).stream(backend=bp.Fake(Reply("v", delay=60.0)))
    with pytest.raises(bp.ProgramError, match="the run ended with Mute: Mute"):
        list(streamed.text_iter("x"))
    assert "Mute" in streamed.to_html()


def test_s11_a_program_that_waits_for_its_own_run_is_told() -> None:
    runs: list[Any] = []

    @bp.function
    def inner(s: bp.State) -> object:
        return runs[0].value

    @bp.function
    def outer(s: bp.State, nested: bool, started: threading.Event) -> object:
        started.wait()
        return inner.run().value if nested else runs[0]["x"]

    for nested in (False, True):
        started = threading.Event()
        runs.clear()
        runs.append(outer.stream(nested=nested, started=started, backend=bp.Fake("v")))
        started.set()
        with pytest.raises(bp.ProgramMistake, match="its own run"):
            runs[0].outcome.result(30)
