"""P1 to P4: how a program is called, what its run gives, how batches go."""

import asyncio
import linecache
import sys
import threading
import time
from collections import deque
from typing import Any

import pytest

import branchpoint as bp
from branchpoint.lang.backends.base import GenerateRequest
from branchpoint.lang.backends.fake import Reply, prompt_text
from branchpoint.lang.context import RunContext
from branchpoint.lang.executor import Executor


@bp.function
def ask(s: bp.State, question: str) -> str:
    s += bp.user(question) + bp.assistant(bp.gen("answer"))
    answer: str = s["answer"]
    return answer


def threads() -> set[str]:
    """Ours that live; those that close the loop of a backend which was collected, of another test maybe, are about to end."""
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("branchpoint")}
    return names - {"branchpoint-dispatcher-end"}


def test_p1_a_run_gives_values_text_messages_and_meta() -> None:
    run = ask.run(question="Hi?", backend=bp.Fake("Hello"))
    assert run.value == run.ret_value == run["answer"] == "Hello"
    assert run.text() == "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    assert run.messages() == [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello"}]
    assert run.meta("answer").finish_reason == "stop"
    assert run.get_meta_info("answer")["completion_tokens"] == 5
    assert "answer" in run
    assert run.variables() == ("answer",)
    assert run.done
    assert run.state["answer"] == "Hello"


def test_p1_a_parameter_named_like_an_option_reaches_the_program() -> None:
    @bp.function
    def program(s: bp.State, temperature: str, stop: int, backend: str = "mine", config: int = 3) -> list[Any]:
        s += bp.gen("x")
        return [temperature, stop, backend, config, s["x"]]

    fake = bp.Fake("x")
    bp.set_default_backend(fake)
    try:
        run = program.run(temperature="warm", stop=7, config=5, max_tokens=9)
    finally:
        bp.set_default_backend(None)
    assert run.value == ["warm", 7, "mine", 5, "x"]
    sampling = fake.requests[0].sampling  # type: ignore[union-attr]
    assert (sampling.temperature, sampling.stop, sampling.max_tokens) == (1.0, (), 9)


def test_p1_options_can_always_be_given_in_a_config() -> None:
    @bp.function
    def program(s: bp.State, temperature: str) -> str:
        s += bp.gen("x")
        return temperature

    fake = bp.Fake("x")
    config = bp.RunConfig(temperature=0.25, stop=["."], backend=fake, namespace="mine")
    assert program.run(temperature="warm", config=config).value == "warm"
    request = fake.requests[0]
    assert isinstance(request, GenerateRequest)
    assert (request.sampling.temperature, request.sampling.stop, request.namespace) == (0.25, (".",), "mine")


def test_p1_the_nearest_option_wins() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += bp.gen("x", temperature=0.1)
        s += bp.gen("y")

    fake = bp.Fake("x")
    program.run(backend=fake, temperature=0.2, top_p=0.5, config=bp.RunConfig(temperature=0.3, top_p=0.9, top_k=4))
    samplings = [request.sampling for request in fake.requests if isinstance(request, GenerateRequest)]
    assert [(s.temperature, s.top_p, s.top_k) for s in samplings] == [(0.1, 0.5, 4), (0.2, 0.5, 4)]


def test_p1_an_unknown_argument_is_refused_by_name() -> None:
    with pytest.raises(bp.ProgramMistake, match="tempreature"):
        ask.run(question="?", backend=bp.Fake(), tempreature=1)
    with pytest.raises(bp.ProgramMistake, match="question"):
        ask.run(backend=bp.Fake())
    with pytest.raises(bp.ProgramMistake, match="no backend"):
        ask.run(question="?")
    with pytest.raises(bp.ProgramMistake, match="RunConfig"):
        ask.run(question="?", config={})
    with pytest.raises(ValueError, match="temperature"):
        ask.run(question="?", backend=bp.Fake(), temperature=-1)


def test_p1_a_function_needs_a_state() -> None:
    with pytest.raises(bp.ProgramMistake, match="first parameter"):
        bp.function(lambda: None)  # type: ignore[arg-type,misc]


def test_p2_run_raises_what_failed_with_variable_line_and_status() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += "Q" + bp.gen("first")
        s += bp.gen("second")

    with pytest.raises(bp.ProgramError) as caught:
        program.run(backend=bp.Fake(["one", bp.BackendError("no capacity", status=503, body="{}")]))
    error = caught.value
    assert (error.variable, error.program, error.status, error.body) == ("second", "program", 503, "{}")
    assert error.origin is not None
    assert error.origin.file == __file__
    assert linecache.getline(__file__, error.origin.line).strip() == 's += bp.gen("second")'
    assert f"test_program.py:{error.origin.line}" in str(error)
    assert "status 503: no capacity" in str(error)
    assert isinstance(error.__cause__, bp.BackendError)


def test_p2_an_exception_of_the_function_comes_out_as_it_is() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += bp.gen("x")
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        program.run(backend=bp.Fake("x"))
    assert not threads()


def test_p2_an_exception_of_the_function_aborts_what_runs() -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += bp.gen("x")
        while not fake.requests:
            time.sleep(0.001)
        raise LookupError

    fake = bp.Fake(Reply("abc", delay=60))
    with pytest.raises(LookupError):
        program.run(backend=fake)
    assert fake.aborted == [fake.requests[0].id]


def test_p2_a_batch_keeps_each_failure_in_its_slot() -> None:
    def script(request: GenerateRequest) -> Any:
        return bp.BackendError("bad") if "1" in prompt_text(request) else "ok"

    runs = ask.run_batch([{"question": str(number)} for number in range(3)], backend=bp.Fake(script), on_error="return")
    assert isinstance(runs[1], bp.ProgramError)
    assert [run.value for run in runs if isinstance(run, bp.Run)] == ["ok", "ok"]


def test_p2_a_batch_raises_after_all_are_done() -> None:
    fake = bp.Fake(lambda request: bp.BackendError("bad") if "0" in prompt_text(request) else "ok")
    with pytest.raises(bp.ProgramError, match="bad") as caught:
        ask.run_batch([{"question": str(number)} for number in range(5)], backend=fake, num_threads=1)
    assert len(fake.requests) == 5
    assert any("1 of 5" in note for note in caught.value.__notes__)


def test_p3_runs_may_begin_while_the_others_are_cancelled() -> None:
    executor, interval = Executor(bp.Fake(), max_concurrency=1), sys.getswitchinterval()
    contexts: deque[RunContext] = deque(maxlen=100)  # the others are forgotten

    def begin() -> None:
        for _ in range(8000):
            contexts.append(RunContext(executor, "p", seed=0, options={}, config=bp.RunConfig(), streams=False))

    thread = threading.Thread(target=begin)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        while thread.is_alive():
            executor.cancel()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert all(context.cancelled for context in contexts)


def test_p3_each_program_runs_exactly_once_and_nothing_is_mutated() -> None:
    calls: list[int] = []

    @bp.function
    def program(s: bp.State, number: int, tags: list[str]) -> int:
        calls.append(number)
        s += f"{number}" + bp.gen("x")
        return number

    tags = ["a"]
    batch = [{"number": number, "tags": tags} for number in range(20)]
    before = [dict(item) for item in batch]
    runs = program.run_batch(batch, backend=bp.Fake("x"), num_threads=4)
    assert [run.value for run in runs] == list(range(20))
    assert sorted(calls) == list(range(20))
    assert batch == before
    assert tags == ["a"]
    assert not threads()


def test_p3_a_batch_takes_tuples_and_bound_arguments() -> None:
    @bp.function
    def program(s: bp.State, left: int, right: int) -> tuple[int, int]:
        return left, right

    assert [run.value for run in program.run_batch([(1, 2), [3, 4]], backend=bp.Fake())] == [(1, 2), (3, 4)]
    assert [run.value for run in program.bind(right=9).run_batch([{"left": 1}], backend=bp.Fake())] == [(1, 9)]
    assert program.run_batch([], backend=bp.Fake()) == []
    with pytest.raises(bp.ProgramMistake, match="tuple"):
        program.run_batch(["ab"], backend=bp.Fake())


def test_p3_one_limit_on_calls_in_flight() -> None:
    now, most = 0, 0

    async def script(request: GenerateRequest) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        return "x"

    config = bp.RunConfig(max_concurrency=3)
    ask.run_batch([{"question": str(number)} for number in range(12)], backend=bp.Fake(script), config=config)
    assert most == 3


def test_p3_no_more_programs_run_at_once_than_there_are_threads() -> None:
    @bp.function
    def program(s: bp.State, number: int) -> None:
        inside.add(number)
        s += f"{number}" + bp.gen("x")
        assert s["x"] == "x"
        most.append(len(inside))
        inside.discard(number)

    inside, most = set[int](), list[int]()
    program.run_batch([(number,) for number in range(9)], backend=bp.Fake(Reply("x", delay=0.01)), num_threads=2)
    assert len(most) == 9 and max(most) <= 2


def test_p3_runs_come_as_they_complete() -> None:
    async def script(request: GenerateRequest) -> str:
        if "slow" in prompt_text(request):
            await gate.wait()
        return "x"

    gate = asyncio.Event()
    fake = bp.Fake(script)
    results = ask.iter_batch([{"question": "slow"}, {"question": "quick"}], backend=fake)
    assert next(results)[0] == 1
    fake.dispatcher.post(gate.set)
    assert [index for index, _ in results] == [0]


def test_p3_closing_the_iterator_aborts_the_rest() -> None:
    fake = bp.Fake(lambda request: "x" if "0" in prompt_text(request) else Reply("x", delay=60))
    results = ask.iter_batch([{"question": str(number)} for number in range(8)], backend=fake, num_threads=4)
    assert next(results)[0] == 0
    results.close()  # type: ignore[attr-defined]
    assert not threads()


def test_p3_a_progress_bar_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    ask.run_batch([{"question": "?"}] * 2, backend=bp.Fake("x"))
    assert capsys.readouterr().out == ""
    ask.run_batch([{"question": "?"}] * 2, backend=bp.Fake("x"), progress_bar=True)
    assert "2/2" in capsys.readouterr().out
    assert set(threading.enumerate()) <= before


async def test_p4_async_programs_and_plain_ones_run_in_a_loop() -> None:
    @bp.function
    async def program(s: bp.State) -> str:
        s += "Q" + bp.gen("x")
        await asyncio.sleep(0)
        value: str = s["x"]
        return value

    fake = bp.Fake("abc")
    assert (await program.arun(backend=fake)).value == "abc"
    assert (await ask.arun(question="?", backend=fake)).value == "abc"
    assert ask.run(question="?", backend=fake).value == "abc"
    assert program.run(backend=fake).value == "abc"


async def test_p4_many_async_runs_at_once() -> None:
    @bp.function
    async def program(s: bp.State, number: int) -> str:
        s += f"{number}" + bp.gen("x")
        value: str = await s.aget("x")
        return value

    fake = bp.Fake(lambda request: f"<{prompt_text(request)}>")
    runs = await asyncio.gather(*(program.arun(number=number, backend=fake) for number in range(50)))
    assert [run.value for run in runs] == [f"<{number}>" for number in range(50)]
    assert not threads()


async def test_p4_a_cancelled_arun_aborts_its_call() -> None:
    @bp.function
    async def program(s: bp.State) -> str:
        s += bp.gen("x")
        value: str = await s.aget("x")
        return value

    fake = bp.Fake(Reply("abc", delay=60))
    task = asyncio.create_task(program.arun(backend=fake))
    while not fake.requests:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake.aborted
    assert not threads()


async def test_p4_a_cancelled_arun_of_a_plain_function_aborts_its_call() -> None:
    @bp.function
    def program(s: bp.State) -> str:
        s += bp.gen("x")
        value: str = s["x"]
        return value

    fake = bp.Fake(Reply("abc", delay=60))
    task = asyncio.create_task(program.arun(backend=fake))
    while not fake.requests:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while threads():
        await asyncio.sleep(0.001)
    assert fake.aborted


def test_p4_runs_in_threads_share_a_backend() -> None:
    fake = bp.Fake("abc")
    values: list[str] = []
    workers = [threading.Thread(target=lambda: values.append(ask.run(question="?", backend=fake).value)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert values == ["abc"] * 8
    assert not threads()


def test_p5_a_program_inside_another_runs_inline_or_on_its_own() -> None:
    @bp.function
    def outer(s: bp.State) -> tuple[str, str]:
        s += "outer "
        inline = ask(s, question="inner")
        alone = ask.run(question="alone").value
        return inline, alone

    fake = bp.Fake("abc")
    assert outer.run(backend=fake).value == ("abc", "abc")
    assert fake.prompts[0].startswith("outer <|im_start|>user\ninner")
    assert fake.prompts[1].startswith("<|im_start|>user\nalone")
    forgetful = bp.function(lambda s: ask(question="inner"))
    with pytest.raises(bp.ProgramMistake, match="state first"):
        forgetful.run(backend=fake)
    assert len(fake.requests) == 2


def test_p5_bound_arguments_are_defaults() -> None:
    bound = ask.bind(question="bound")
    fake = bp.Fake("abc")
    bound.run(backend=fake)
    bound.run(question="given", backend=fake)
    bound.run("positional", backend=fake)
    assert [prompt.split("\n")[1].split("<")[0] for prompt in fake.prompts] == ["bound", "given", "positional"]
    outer = bp.function(lambda s: [bound(s), bound(s, question="inline")])
    assert outer.run(backend=fake).value == ["abc", "abc"]
    assert "bound" in fake.prompts[-2] and fake.prompts[-1].count("inline") == 1
    bound.bind(question="last").run(backend=fake)
    assert "last" in fake.prompts[-1]
    with pytest.raises(bp.ProgramMistake, match="nothing"):
        ask.bind(nothing=1)


def test_a_program_can_not_be_run_from_inside_its_backend() -> None:
    fake = bp.Fake(lambda request: ask.run(question="again", backend=fake).value)
    with pytest.raises(bp.ProgramError, match="must not block"):
        ask.run(question="?", backend=fake)


def test_a_closed_backend_refuses_and_fails_what_runs() -> None:
    with bp.Fake("abc") as fake:
        ask.run(question="?", backend=fake)
    assert fake.closed
    fake.shutdown()
    with pytest.raises(bp.BackendError, match="closed"):
        ask.run(question="?", backend=fake)

    slow = bp.Fake(Reply("abc", delay=60))
    run = ask.run(question="?", backend=slow, stream=True)
    while not slow.requests:
        time.sleep(0.001)
    slow.shutdown()
    with pytest.raises(bp.ProgramError, match="aborted"):
        run.wait()
