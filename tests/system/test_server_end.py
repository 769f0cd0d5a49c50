"""How a server ends, and how it doesn't begin: signals, a dead engine, a taken port, models that can't be loaded."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.system.served import Served, served

TINY = ("--context-length", "2048", "--num-pages", "1024", "--threads", "1")
LONG = {"prompt": [1, 2, 3], "max_tokens": 2000, "ignore_eos": True, "temperature": 0, "n": 4}


class Asking:
    """A request on a thread."""

    def __init__(self, server: Served, body: dict[str, object]) -> None:
        self.answer: httpx.Response | None = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, args=(server.url, body))
        self._thread.start()

    def _ask(self, url: str, body: dict[str, object]) -> None:
        try:
            self.answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        except httpx.HTTPError as error:
            self.error = error

    def done(self) -> httpx.Response:
        self._thread.join(60)
        assert self.answer is not None, self.error
        return self.answer


def until_running(server: Served, count: int) -> None:
    deadline = time.monotonic() + 30
    while httpx.get(f"{server.url}/load").json()["server_load"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sigterm_to_the_whole_group_lets_running_requests_end_and_exits_with_0() -> None:
    with served(*TINY, model="dummy:llama") as server:
        whole = Asking(server.ready(), LONG | {"max_tokens": 1000})
        stream = Asking(server, LONG | {"max_tokens": 1000, "stream": True})
        until_running(server, 2)
        engine = server.engine_pid
        for pid in (*server.children, server.process.pid):  # as systemd does it
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
        late = Asking(server, LONG)
        assert whole.done().status_code == 200
        assert whole.done().json()["usage"]["completion_tokens"] == 4000
        assert stream.done().text.count('"finish_reason":"length"') == 4 and stream.done().text.endswith("data: [DONE]\n\n")
        late._thread.join(30)
        assert late.answer is None or late.answer.status_code == 503
        assert server.wait() == 0, server.output
        assert not Path(f"/proc/{engine}").exists()


def test_a_dead_engine_answers_open_requests_is_started_again_once_and_then_ends_the_server() -> None:
    with served(*TINY, model="dummy:llama") as server:
        asking = Asking(server.ready(), LONG)
        stream = Asking(server, LONG | {"stream": True})
        until_running(server, 2)
        os.kill(server.engine_pid, signal.SIGKILL)
        answer = asking.done()
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "InternalServerError"
        told = stream.done()
        assert told.status_code == 500 or told.text.endswith("data: [DONE]\n\n")
        deadline = time.monotonic() + 60
        while httpx.get(f"{server.url}/health").status_code != 200:
            assert time.monotonic() < deadline and server.process.poll() is None, server.output
            time.sleep(0.05)
        assert httpx.post(f"{server.url}/v1/completions", json=LONG | {"max_tokens": 3}, timeout=60).status_code == 200
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait() == 1, server.output
        assert any("killed by signal 9" in line for line in server.lines)


def test_a_taken_port_fails_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with served("--port", str(taken.getsockname()[1])) as server:
            assert server.wait() == 2
            assert server.output.startswith("branchpoint: Can't listen on 127.0.0.1:") and "Traceback" not in server.output


@pytest.mark.parametrize("kind", ["missing", "broken"])
def test_a_model_that_cant_be_loaded_is_one_line_and_status_2(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    if kind == "broken":
        path.write_bytes(b"GGUF" + b"\0" * 100)
    with served(model=str(path)) as server:
        assert server.wait(60) == 2
        assert server.output.splitlines()[-1].startswith("branchpoint: ") and "Traceback" not in server.output, server.output


def test_sigterm_while_loading_ends_it() -> None:
    with served(*TINY, model="dummy:llama") as server:
        server.until("Loading")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.output


def test_two_models_serve_by_name_one_outlives_the_others_engine_and_both_end_with_the_server() -> None:
    with served("dummy:qwen2", *TINY, model="dummy:llama") as server:
        url = server.ready().url
        body = {"prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}
        names = ("dummy:llama", "dummy:qwen2")

        def ask(name: str) -> httpx.Response:
            return httpx.post(f"{url}/v1/completions", json=body | {"model": name}, timeout=60)

        assert [ask(name).json()["model"] for name in names] == list(names)
        loaded = [line.split()[1] for line in server.lines if line.startswith("Loaded: ")]
        assert loaded == list(names)
        os.kill(server.engine_pid, signal.SIGKILL)
        server.until("starts again")
        health = httpx.get(f"{url}/health").json()["models"]
        (alive,) = [name for name in names if health[name] == "ready"]
        assert ask(alive).status_code == 200
        children = server.children
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.output
        deadline = time.monotonic() + 30  # multiprocessing's own helper ends a moment after its parent
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_models_that_dont_say_how_they_share_memory_are_refused_before_anything_is_loaded() -> None:
    with served("dummy:qwen2", model="dummy:llama") as server:
        assert server.wait(60) == 2
        assert "2 models share this machine's memory" in server.output and "Loading" not in server.output
