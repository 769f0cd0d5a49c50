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

SMALL = ("--context-length", "512", "--num-pages", "128", "--cpu-weights", "float32")
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


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


def test_sigterm_lets_running_requests_end_and_exits_with_0() -> None:
    with served(*SMALL) as server:
        asking = Asking(server.ready(), LONG | {"max_tokens": 60})
        until_running(server, 1)
        server.signal(signal.SIGTERM)
        time.sleep(0.3)
        late = Asking(server, LONG)
        assert asking.done().status_code == 200
        assert asking.done().json()["usage"]["completion_tokens"] == 60
        late._thread.join(30)
        assert late.answer is None or late.answer.status_code == 503
        assert server.wait() == 0, server.output


def test_a_dead_engine_answers_open_requests_and_exits_non_zero() -> None:
    with served(*SMALL) as server:
        asking = Asking(server.ready(), LONG)
        stream = Asking(server, LONG | {"stream": True})
        until_running(server, 2)
        os.kill(server.engine_pid, signal.SIGKILL)
        answer = asking.done()
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "InternalServerError"
        told = stream.done()
        assert told.status_code == 500 or told.text.endswith("data: [DONE]\n\n")
        assert server.wait() not in (0, None), server.output


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
    with served(*SMALL) as server:
        server.until("Loading")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.output
