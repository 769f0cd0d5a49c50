"""T1: streams are replayable, tagged, end explicitly, and cost nothing while nobody reads."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text
from branchpoint.lang.stream import Replay


@bp.function
def program(s: bp.State) -> str:
    s += bp.user("Q") + bp.assistant("So: " + bp.gen("x") + bp.select("y", ["!", "?"]))
    s += bp.user("More") + bp.assistant(bp.gen("z"))
    text: str = s["z"]
    return text


TEXT = "".join(
    [
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nSo: abcdef!<|im_end|>\n",
        "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\nabcdef<|im_end|>\n",
    ]
)


def test_t1_a_stream_gives_everything_to_early_late_and_many_readers() -> None:
    run = program.run(backend=bp.Fake("abcdef", piece=2), stream=True)
    read: list[str] = []
    readers = [threading.Thread(target=lambda: read.append("".join(run.text_iter()))) for _ in range(5)]
    for reader in readers:
        reader.start()
    assert list(run.text_iter("x")) == ["ab", "cd", "ef"]
    assert run.value == "abcdef"
    for reader in readers:
        reader.join()
    assert read == [TEXT] * 5
    assert "".join(run.text_iter()) == run.text() == TEXT
    assert list(run.text_iter("x")) == ["ab", "cd", "ef"]


def test_t1_pieces_come_before_the_end() -> None:
    async def script(request: GenerateRequest) -> Any:
        if "Then" in prompt_text(request):
            await gate.wait()
        return "abc"

    def body(s: bp.State) -> None:
        s += bp.gen("x")
        s += "Then" + bp.gen("y")

    gate = asyncio.Event()
    fake = bp.Fake(script)
    run = bp.function(body).stream(backend=fake)
    assert list(run.text_iter("x")) == ["abc"]
    text = run.text_iter()
    assert [next(text), next(text)] == ["abc", "Then"]
    assert not run.done
    fake.dispatcher.post(gate.set)
    assert list(text) == ["abc"]
    assert run.wait().done


async def test_t1_async_readers_get_the_same() -> None:
    run = program.run(backend=bp.Fake("abcdef", piece=2), stream=True)

    async def read() -> str:
        return "".join([piece async for piece in run.text_async_iter()])

    texts = await asyncio.gather(*(read() for _ in range(3)))
    assert texts == [TEXT] * 3
    assert [piece async for piece in run.text_async_iter("z")] == ["ab", "cd", "ef"]
    pairs = [pair async for pair in run.branches_iter()]
    assert "".join(piece for _, piece in pairs) == TEXT


async def test_t1_a_program_of_the_loop_streams_too() -> None:
    run = await program.arun(backend=bp.Fake("abcdef"), stream=True)
    assert "".join([piece async for piece in run.text_async_iter("x")]) == "abcdef"
    assert run.value == "abcdef"


def test_t1_a_slow_reader_holds_up_nobody() -> None:
    run = program.run(backend=bp.Fake("abcdef", piece=1), stream=True)
    slow = run.text_iter()
    first = next(slow)
    assert run.value == "abcdef"
    assert first + "".join(slow) == TEXT


def test_t1_a_failure_is_raised_after_what_came_before() -> None:
    run = program.run(backend=bp.Fake([Reply("abcdef", error=bp.BackendError("cut"))]), stream=True)
    for name in ("x", None):
        read: list[str] = []
        with pytest.raises(bp.ProgramError, match="cut"):
            for piece in run.text_iter(name):
                read.append(piece)  # noqa: PERF402  # what came before the error is looked at
        assert "".join(read).endswith("abcdef")
    with pytest.raises(bp.ProgramError, match="cut"):
        list(run.branches_iter())
    with pytest.raises(bp.ProgramError, match="cut"):
        run.text()


def test_t1_an_exception_of_the_function_reaches_the_readers() -> None:
    def body(s: bp.State) -> None:
        s += "before"
        raise LookupError("mine")

    run = bp.function(body).stream(backend=bp.Fake())
    for stream in (run.text_iter(), run.text_iter("x"), run.branches_iter()):
        with pytest.raises(LookupError, match="mine"):
            list(stream)  # type: ignore[call-overload]
    with pytest.raises(LookupError, match="mine"):
        run.wait()


def test_t1_a_variable_that_never_comes_is_said_at_the_end() -> None:
    run = program.run(backend=bp.Fake("abc"), stream=True)
    with pytest.raises(bp.UnknownVariable, match="'nothing'"):
        list(run.text_iter("nothing"))


def test_t1_branches_are_tagged() -> None:
    def body(s: bp.State) -> None:
        s += "Q "
        forks = s.fork(2)
        forks += lambda number: f"{number} " + bp.gen("x")
        (inner,) = forks[1].fork(1)
        inner += "inner"
        forks.join()

    texts: dict[tuple[int, ...], str] = {}
    for stream in (True, False):
        texts.clear()
        run = bp.function(body).run(backend=bp.Fake("abcdef", piece=2), stream=stream)
        for branch, piece in run.branches_iter():
            texts[branch] = texts.get(branch, "") + piece
        assert texts == {(): "Q ", (0,): "0 abcdef", (1,): "1 abcdef", (1, 0): "inner"}
    assert list(run.states[1].text_iter("x")) == ["ab", "cd", "ef"]
    assert "".join(run.states[3].text_iter()) == run.states[3].text() == "Q 1 abcdefinner"


def test_t1_closing_the_only_reader_aborts_when_asked() -> None:
    fake = bp.Fake(Reply("abcdef" * 100, delay=0.005), piece=1)
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=fake)
    other = run.text_iter("x")
    next(other)
    with run.text_iter("x", cancel=True) as reader:
        next(reader)
    assert not fake.aborted
    next(other)
    with run.text_iter("x", cancel=True) as reader:
        next(reader)
        other.close()
        assert list(other) == []
    with pytest.raises(bp.ProgramError, match="nobody reads it"):
        run.wait()
    assert fake.aborted


def test_t1_a_call_whose_only_reader_goes_before_it_begins_is_never_made() -> None:
    fake = bp.Fake(Reply("abcdef", delay=0.02))

    def body(s: bp.State) -> object:
        s += bp.gen("x") + bp.gen("y")
        s.text_iter("y", cancel=True).close()
        with pytest.raises(bp.ProgramError, match="nobody reads it"):
            return s["y"]
        return s["x"]

    assert bp.function(body).run(backend=fake).value == "abcdef"
    assert len(fake.requests) == 1


def test_t1_a_call_that_is_given_up_just_as_it_begins_ends() -> None:
    def body(s: bp.State, stop: Callable[[bp.State], object]) -> None:
        s += bp.gen("x")
        stop(s)
        with pytest.raises(bp.ProgramError, match="aborted"):
            s["x"]

    def cancel_behind(s: bp.State) -> None:
        context = s.place.context
        context.executor.dispatcher.post(context.cancel)  # in the same turn of the loop as the call's own beginning

    for stop in (cancel_behind, lambda s: s.text_iter("x", cancel=True).close()):
        bp.function(body).run(stop, backend=bp.Fake(Reply("abcdef", delay=60)))


def test_t1_closing_a_reader_of_the_whole_text_aborts_the_run_when_asked() -> None:
    fake = bp.Fake(Reply("abcdef" * 100, delay=0.005), piece=1)
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=fake)
    with run.text_iter(cancel=True) as reader:
        next(reader)
    with pytest.raises(bp.ProgramError, match="aborted"):
        run.wait()


def test_t1_leaving_a_loop_over_the_only_reader_aborts_when_asked() -> None:
    fake = bp.Fake(Reply("abcdef" * 100, delay=0.005), piece=1)
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=fake)
    for _ in run.text_iter("x", cancel=True):
        break
    with pytest.raises(bp.ProgramError, match="nobody reads it"):
        run.wait()
    assert fake.aborted


def test_t1_a_cancelled_run_says_so_to_its_readers() -> None:
    fake = bp.Fake(Reply("abcdef" * 100, delay=0.005), piece=1)
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=fake)
    reader = run.text_iter("x")
    next(reader)
    run.cancel()
    with pytest.raises(bp.ProgramError, match="the run was cancelled"):
        list(reader)


async def test_t1_an_async_reader_can_give_up() -> None:
    fake = bp.Fake(Reply("abcdef", delay=0.02), piece=1)
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=fake)
    async with run.text_async_iter("x") as reader:
        assert await anext(reader) == "a"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            async for _ in run.text_async_iter("x"):
                await asyncio.sleep(0.01)
    assert [piece async for piece in run.text_async_iter("x")] == list("abcdef")


def test_t1_waiting_costs_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(replay: Replay[Any], *where: Any) -> Any:
        looked.append(where)
        return look(replay, *where)

    looked, look = list[Any](), Replay.look
    monkeypatch.setattr(Replay, "look", counted)
    run = bp.function(lambda s: s.__iadd__(bp.gen("x")) and None).stream(backend=bp.Fake(Reply("a", delay=0.1)))
    assert list(run.text_iter("x")) == ["a"]
    assert run["x"] == "a"
    assert len(looked) < 30


def test_a_replay_keeps_order_under_many_readers_and_drops_what_comes_late() -> None:
    replay: Replay[int] = Replay()
    read: list[list[int]] = []

    def follow(source: Iterable[int]) -> None:
        read.append(list(source))

    readers = [threading.Thread(target=follow, args=(replay,)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for number in range(1000):
        replay.put(number)
    replay.end()
    replay.put(-1)
    replay.end(LookupError)
    for reader in readers:
        reader.join()
    assert read == [list(range(1000))] * 4
    assert list(replay) == list(range(1000))


def test_a_replay_forgets_readers_whose_loop_is_gone() -> None:
    replay: Replay[int] = Replay()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                async for _ in replay:
                    pass

    asyncio.run(give_up())
    replay.put(1)
    replay.end()
    assert list(replay) == [1]
