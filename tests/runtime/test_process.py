"""Both hosts of an engine keep one contract; and whatever happens to the engine, each call ends exactly once."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from branchpoint.constrained.spec import Choice
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import EngineDead, InvalidRequest, ModelError, RuntimeFailure, UnknownModel
from branchpoint.runtime.ipc import Address, ProcessInbox
from branchpoint.runtime.loop import Answer, LoadAdapter, QueueInbox, Report, Shutdown, run_engine
from branchpoint.runtime.lora.adapter import Adapter
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.messages import Call, Completed, Event, Failed, ScoreCall, Scored
from branchpoint.runtime.process import EngineProcess, EngineThread
from branchpoint.runtime.sampling import SamplingParams
from tests.runtime.scripted import Collected, collect, make_engine, run
from tests.runtime.scripted_host import build_scripted

Host = EngineThread | EngineProcess
CONFIG = EngineConfig(model="scripted")


@pytest.fixture(scope="module", autouse=True)
def importable_tests() -> Iterator[None]:
    """An engine process finds its `build` by name: it inherits this path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2]))
        yield


def open_thread() -> Host:
    return EngineThread(build_scripted(CONFIG))


def open_process() -> Host:
    return EngineProcess(CONFIG, build_scripted)


@pytest.fixture(scope="module", params=[open_thread, open_process])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with request.param() as opened:
        yield opened


class Reader:
    """Waits for the end of one call."""

    def __init__(self, host: Host, call: Call | ScoreCall) -> None:
        self.events: list[Event] = []
        self._ended = threading.Event()
        host.submit(call, self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Completed | Scored | Failed):
            self._ended.set()

    def end(self) -> Event:
        assert self._ended.wait(20), "no terminal event came"
        return self.events[-1]

    def failure(self) -> Failed:
        end = self.end()
        assert isinstance(end, Failed)
        return end


def call(call_id: str, max_tokens: int | None = 8, **sampling: object) -> Call:
    options = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=3, **sampling)  # type: ignore[arg-type]
    return Call(call_id, (1, 2, 3), options)


def test_a_change_of_adapters_that_is_refused_says_why(host: Host) -> None:
    """tests/lang/test_backend_engine.py has changes that are made."""
    with pytest.raises(InvalidRequest, match="takes no adapters; start it with enable_lora") as refused:
        host.load_adapter("a", "/nowhere").result(20)
    assert refused.value.param == "enable_lora"
    with pytest.raises(UnknownModel, match="No adapter 'a' is loaded"):
        host.unload_adapter("a").result(20)
    assert Reader(host, Call("adapted", (1, 2), adapter="a")).failure().kind == UnknownModel.kind


def test_whatever_reading_an_adapter_raises_is_answered() -> None:
    class Panic(BaseException):
        pass

    def read(name: str, folder: str, *, within: tuple[str, ...]) -> Adapter:
        raise Panic("out of range")

    engine, inbox, answers = make_engine(), QueueInbox(), list[Report]()
    engine.adapters = Adapters(read)

    def deliver(reports: list[Report]) -> None:
        answers.extend(reports)
        inbox.put(Shutdown())

    inbox.put(LoadAdapter(7, "a", "folder"))
    run_engine(engine, inbox, deliver)
    assert isinstance(answers[0], Answer) and answers[0].number == 7
    assert answers[0].failed is not None and answers[0].failed.message == "Panic: out of range"


def test_a_call_says_what_the_engine_says(host: Host) -> None:
    wanted = run(make_engine(), call("same", n=2))["same"]
    reader = Reader(host, call("same", n=2))
    assert isinstance(reader.end(), Completed)
    got: dict[str, Collected] = {}
    collect(reader.events, got)
    assert (got["same"].tokens, got["same"].text) == (wanted.tokens, wanted.text)


def test_scores_and_constraints_travel(host: Host) -> None:
    scored = Reader(host, ScoreCall("score", (1, 2), ((3, 4), (5,)))).end()
    assert isinstance(scored, Scored)
    assert [len(each) for each in scored.logprobs] == [2, 1]
    reader = Reader(host, Call("choice", (1,), SamplingParams(max_tokens=5), Choice(("1,2", "7"))))
    assert isinstance(reader.end(), Completed)
    got: dict[str, Collected] = {}
    collect(reader.events, got)
    assert got["choice"].tokens[0][1] == 7


def test_refusals_arrive_as_failed_events(host: Host) -> None:
    assert Reader(host, Call("ids", (1000,))).failure().kind == "invalid_request"
    assert Reader(host, Call("long", (1,) * 1000)).failure().kind == "capacity"
    bias = Reader(host, Call("bias", (1,), SamplingParams(logit_bias=((99, 1.0),)))).failure()
    assert (bias.kind, bias.param) == ("invalid_request", "logit_bias")


def test_an_abort_ends_its_call_only(host: Host) -> None:
    endless = Reader(host, call("endless", None))
    other = Reader(host, call("other", 30))
    host.abort("endless")
    host.abort("unknown")
    end = endless.end()
    assert isinstance(end, Completed) or (isinstance(end, Failed) and end.kind == "aborted")
    assert isinstance(other.end(), Completed)


def test_an_id_in_use_is_refused_and_its_call_goes_on(host: Host) -> None:
    first = Reader(host, call("twice", 300))
    second = Reader(host, call("twice", 1))
    assert second.failure().param == "id" or isinstance(first.end(), Completed)
    assert isinstance(first.end(), Completed)


def test_stats_and_flush_answer(host: Host) -> None:
    Reader(host, call("warm")).end()
    stats = host.stats().result(20)
    assert stats.completed_calls >= 1
    assert stats.pages_free + stats.pages_cached + stats.pages_held == 64
    assert host.flush_cache().result(20) == stats.pages_cached
    assert host.stats().result(20).pages_free == 64


def test_many_callers_at_once_each_get_their_own(host: Host) -> None:
    ends: dict[str, Event] = {}

    def caller(name: int) -> None:
        for round_ in range(5):
            reader = Reader(host, call(f"{name}-{round_}", 3 + name))
            ends[f"{name}-{round_}"] = reader.end()
            assert {event.id for event in reader.events} == {f"{name}-{round_}"}

    threads = [threading.Thread(target=caller, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 30
    assert all(isinstance(end, Completed) for end in ends.values())


def test_a_reader_that_raises_costs_only_its_own_call(host: Host) -> None:
    def broken(event: Event) -> None:
        raise ValueError("a broken reader")

    host.submit(call("broken", None), broken)
    assert isinstance(Reader(host, call("fine")).end(), Completed)
    assert host.stats().result(20).running == 0
    assert host.dead is None


def test_an_idle_host_costs_no_processor_time(host: Host) -> None:
    host.stats().result(20)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize("wait", [5e-5, 9e-4, 2.7e-3])
def test_a_process_waits_for_commands_no_longer_than_it_may(wait: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(zmq.Socket, "poll", lambda self, milliseconds: waited.append(milliseconds / 1e3))
    monkeypatch.setattr(time, "sleep", waited.append)
    with zmq.Context[zmq.Socket[bytes]]() as context:
        inbox = ProcessInbox(context, Address(str(tmp_path)))
        assert inbox.take(wait=wait) == []
        inbox.close()
    assert 0 < sum(waited) <= wait


@pytest.mark.parametrize("opened", [open_thread, open_process])
def test_closing_ends_open_calls_and_refuses_later_ones(opened: Callable[[], Host]) -> None:
    host = opened()
    pending = Reader(host, call("pending", None))
    host.close()
    host.close()
    assert isinstance(pending.end(), Completed) or pending.failure().kind == "aborted"
    assert Reader(host, call("late")).failure().kind == "engine_dead"
    with pytest.raises(EngineDead, match="closed"):
        host.stats().result(1)
    assert host.dead is None


@pytest.mark.parametrize(("opened", "fate", "says"), [(open_thread, "raise", "ZeroDivision"), (open_process, "exit", "status 7")])
def test_when_the_engine_dies_every_open_call_is_told(opened: Callable[[], Host], fate: str, says: str) -> None:
    with opened() as host:
        deaths: list[EngineDead] = []
        host.on_death(deaths.append)
        readers = [Reader(host, call(name, None)) for name in ("a", "b", fate)]
        assert {reader.failure().kind for reader in readers} == {"engine_dead"}
        assert says in readers[0].failure().message
        assert Reader(host, call("late")).failure().kind == "engine_dead"
        assert isinstance(host.dead, EngineDead)
        host.on_death(deaths.append)
        assert deaths == [host.dead, host.dead]


def test_a_killed_process_is_noticed() -> None:
    with EngineProcess(CONFIG, build_scripted) as host:
        reader = Reader(host, Call("waits", (1,), SamplingParams(), Choice(("1", "2"))))
        reader.end()
        asked = Reader(host, call("open", None))
        os.kill(host.pid, signal.SIGKILL)
        assert isinstance(asked.end(), Completed | Failed)
        assert Reader(host, call("after", None)).failure().kind == "engine_dead"
        assert host.dead is not None and "signal 9" in str(host.dead)


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [("missing", ModelError, "no model"), ("exit", ModelError, "status 3"), ("broken", RuntimeFailure, "loading is broken")],
)
def test_an_error_of_loading_is_raised_here(model: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        EngineProcess(EngineConfig(model=model), build_scripted)


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from branchpoint.runtime.config import EngineConfig\n"
        "from branchpoint.runtime.process import EngineProcess\n"
        "from tests.runtime.scripted_host import build_scripted\n"
        "if __name__ == '__main__':\n"
        "    host = EngineProcess(EngineConfig(model='scripted'), build_scripted)\n"
        "    print(host.pid, host._address.folder, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    file = tmp_path / "parent.py"
    file.write_text(script)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, str(file)], env=environment, capture_output=True, text=True, check=False, timeout=60)
    pid, folder = done.stdout.split()
    for _ in range(200):
        if not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the engine process outlived its parent")
    assert not Path(folder).exists()
