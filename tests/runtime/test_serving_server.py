"""The life of the API process, in this process, with the fake engine behind a real socket."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from branchpoint.runtime.errors import EngineDead, ModelError
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.life import Loading
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.server import PortTaken, Server, bind
from tests.runtime.serving_fake import FakeEngine
from tests.runtime.serving_site import tokenizer


def fine() -> None:
    return None


class Run:
    def __init__(self, load: Callable[[], None] = fine, give_up: Callable[[], None] = fine, **options: object) -> None:
        self.engine = FakeEngine()
        self.told = list[str]()
        self.listener = bind("127.0.0.1", 0)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.listener.getsockname()[1]}", timeout=60)

        def loaded() -> Loaded:
            load()
            return Loaded(self.engine, tokenizer(), ("fake",), 8)

        server = Server(ServerOptions(**options), [Loading(loaded, give_up)], self.told.append)
        self.task = asyncio.create_task(server.run(self.listener))

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while (await self.http.get("/health")).status_code != 200:
                await asyncio.sleep(0.005)

    async def held(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.engine.held) < count:
                await asyncio.sleep(0.005)

    def ask(self, **body: object) -> "asyncio.Task[httpx.Response]":
        return asyncio.create_task(self.http.post("/v1/completions", json={"prompt": "hi"} | body))


@asynccontextmanager
async def running(load: Callable[[], None] = fine, give_up: Callable[[], None] = fine, **options: object) -> AsyncIterator[Run]:
    run = Run(load, give_up, **options)
    yield run
    await run.http.aclose()
    assert run.task.done(), "the server was left running"
    run.listener.close()


async def test_sigterm_drains_and_exits_with_0() -> None:
    async with running() as run:
        await run.ready()
        run.engine.hold = True
        asking = run.ask()
        await run.held(1)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        assert (await run.ask()).status_code == 503
        assert not run.task.done()
        run.engine.release()
        assert (await asking).status_code == 200
        assert await asyncio.wait_for(run.task, 60) == 0 and run.engine.closed
        assert run.told[0].startswith("Loading") and run.told[1].startswith("Ready: fake on http://127.0.0.1:")


@pytest.mark.parametrize("second", [False, True])
async def test_what_outlasts_the_timeout_or_a_second_signal_is_answered_with_an_error(second: bool) -> None:
    async with running(shutdown_timeout=60 if second else 0.05) as run:
        await run.ready()
        run.engine.hold = True
        asking, stream = run.ask(), run.ask(stream=True)
        await run.held(2)
        os.kill(os.getpid(), signal.SIGTERM)
        if second:
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
        assert (await asking).status_code == 503 and (await stream).status_code == 503
        assert (await asking).headers["retry-after"] == "1"
        assert await asyncio.wait_for(run.task, 60) == 0
        assert len(run.engine.aborted) == 2


def kill(run: Run) -> None:
    """The engine dies, as the client's thread tells it."""
    run.engine.dead = EngineDead("The engine process ended: killed by signal 9.")
    assert run.engine.watcher is not None
    threading.Thread(target=run.engine.watcher, args=(run.engine.dead,)).start()


async def test_a_dead_engine_is_started_again_once_then_the_server_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchpoint.runtime.serving.life.BACKOFF_SECONDS", 0.2)
    async with running() as run:
        await run.ready()
        run.engine.hold = True
        asking = run.ask()
        await run.held(1)
        kill(run)
        assert (await asking).status_code == 500
        between = await run.ask()
        assert between.status_code == 503 and between.headers["retry-after"]
        assert (await run.http.get("/livez")).status_code == 200
        await run.ready()
        run.engine.hold = False
        assert (await run.ask()).status_code == 200
        text = (await run.http.get("/metrics")).text
        assert 'branchpoint:engine_restarts_total{model_name="fake"} 1.0' in text
        kill(run)
        assert await asyncio.wait_for(run.task, 60) == 1
        assert "killed by signal 9" in run.told[-1] and sum("starts again" in line for line in run.told) == 1


async def test_without_restarts_a_dead_engine_ends_the_server_at_once() -> None:
    async with running(restarts=0) as run:
        await run.ready()
        kill(run)
        assert await asyncio.wait_for(run.task, 60) == 1


async def test_an_engine_that_cant_start_again_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchpoint.runtime.serving.life.BACKOFF_SECONDS", 0.0)
    loads = list[int]()

    def load() -> None:
        loads.append(1)
        if len(loads) > 1:
            raise ModelError("The file is gone.")

    async with running(load) as run:
        await run.ready()
        kill(run)
        assert await asyncio.wait_for(run.task, 60) == 1 and "The file is gone." in run.told[-1]


async def test_a_signal_while_the_engine_is_about_to_start_again_ends_the_server() -> None:
    async with running() as run:
        await run.ready()
        kill(run)
        async with asyncio.timeout(60):
            while "starts again" not in run.told[-1]:
                await asyncio.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(run.task, 60) == 0


async def test_while_the_model_loads_requests_are_answered_503() -> None:
    gate = threading.Event()
    async with running(load=lambda: gate.wait(60) and None) as run:
        answer = await run.ask()
        assert answer.status_code == 503 and answer.headers["retry-after"] == "5"
        assert (await run.http.get("/readyz")).json() == {"status": "loading"}
        assert (await run.http.get("/livez")).status_code == 200
        gate.set()
        await run.ready()
        assert (await run.ask()).status_code == 200
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(run.task, 60) == 0


async def test_sigterm_while_loading_gives_the_model_up() -> None:
    gate = threading.Event()

    def load() -> None:
        gate.wait(60)
        raise ModelError("The engine process ended while it loaded.")

    async with running(load, gate.set) as run:
        assert (await run.http.get("/health")).status_code == 503
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(run.task, 60) == 0


async def test_a_model_that_cant_be_loaded_raises() -> None:
    def load() -> None:
        raise ModelError("There is no such model.")

    async with running(load) as run:
        with pytest.raises(ModelError, match="no such model"):
            await asyncio.wait_for(run.task, 60)


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortTaken, match="Can't listen on"):
            bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(PortTaken):
        bind("no.such.host.invalid", 1)


async def test_answers_are_sent_without_delay() -> None:
    accepted = asyncio.get_running_loop().create_future()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = bind("127.0.0.1", 0)
    async with await asyncio.start_server(take, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await accepted, "an answer's second part would wait until the first is acknowledged"
        writer.close()
        await writer.wait_closed()
