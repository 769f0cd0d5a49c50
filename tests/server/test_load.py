"""Under load: queues with ends, deadlines, readers that stop, health that tells the truth, a thousand streams at once."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from branchpoint.runtime.messages import Completed, Delta, SampleFinished, Usage
from branchpoint.runtime.serving.app import build_app
from branchpoint.runtime.serving.exchange import MERGE_FROM
from branchpoint.runtime.serving.gateway import Gateway, Loaded
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.pulse import Pulse
from branchpoint.runtime.serving.server import bind
from branchpoint.runtime.stats import EngineStats
from branchpoint.runtime.tokenizer import Tokenizer
from tests.runtime.serving_fake import FakeEngine
from tests.runtime.serving_site import open_site, refusal, tokenizer
from tests.server.waiting import until

STREAM = {"prompt": "hi", "max_tokens": 26, "stream": True}


async def test_prompts_that_would_wait_beyond_the_limit_are_429_and_counted() -> None:
    async with open_site(max_queued_tokens=10) as site:
        site.engine.hold = True
        waiting = asyncio.create_task(site.complete(prompt="x" * 8))
        await until(lambda: site.gateway.num_open == 1)
        refused = await site.complete(prompt="x" * 8)
        refusal(refused, 429)
        assert refused.headers["retry-after"] == "1"
        assert (
            'vllm:admission_rejections_total{engine="0",model_name="fake",reason="overloaded"} 1.0'
            in (await site.http.get("/metrics")).text
        )
        site.engine.release()
        assert (await waiting).status_code == 200
        assert (await site.complete(prompt="x" * 30)).status_code == 200, "a single long prompt is served where nothing waits"


async def test_however_many_come_at_once_no_more_wait_than_may() -> None:
    async with open_site(max_queued_tokens=20) as site:
        site.engine.hold = True
        asked = [asyncio.create_task(site.complete(prompt="x" * 8)) for _ in range(12)]  # all are tokenised side by side
        await until(lambda: sum(task.done() for task in asked) >= 10)
        assert site.gateway.num_open == 2 and all(task.result().status_code == 429 for task in asked if task.done())
        site.engine.release()
        assert sorted([(await task).status_code for task in asked]) == [200] * 2 + [429] * 10


async def test_health_answers_while_a_long_prompt_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site() as site:
        tokenizer, began, gate = site.gateway.loaded.tokenizer, threading.Event(), threading.Event()
        prepare = type(tokenizer).prepare

        def slow(self: Tokenizer, *given: Any, **more: Any) -> Any:
            began.set()
            assert gate.wait(60)
            return prepare(self, *given, **more)

        monkeypatch.setattr(type(tokenizer), "prepare", slow)
        waiting = asyncio.create_task(site.complete())
        await until(began.is_set)
        assert (await site.http.get("/health")).status_code == 200
        gate.set()
        assert (await waiting).status_code == 200


async def test_a_request_that_waits_too_long_for_its_first_token_is_503() -> None:
    async with open_site(queue_seconds=0.02) as site:
        site.engine.hold = True
        for stream in (False, True):
            answer = await site.chat(stream=stream)
            assert "waited" in refusal(answer, 503) and answer.headers["retry-after"]
        assert len(site.engine.aborted) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_deadlines_end_requests_and_free_their_calls(stream: bool) -> None:
    async with open_site(max_request_seconds=30.0) as site:
        site.engine.hold = True
        body = {"prompt": "hi", "stream": stream}
        answer = await site.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.02"})
        assert "0.02" in refusal(answer, 504) and site.engine.aborted
        for wrong in ("soon", "-1", "0", "nan", "inf"):
            answer = await site.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": wrong})
            refusal(answer, 400, "X-Request-Timeout")


async def test_a_deadline_after_the_first_byte_is_an_error_event_then_done() -> None:
    async with open_site(max_request_seconds=0.05) as site:
        site.engine.hold = True
        answer = asyncio.create_task(site.complete(**STREAM))
        await until(lambda: bool(site.engine.held))
        call, on_event = site.engine.held[0]
        on_event(Delta(call.id, 0, "a", (97,)))
        events = [line for line in (await answer).text.split("\n\n") if line]
        assert '"a"' in events[0] and '"code":504' in events[-2] and events[-1] == "data: [DONE]"


async def test_a_request_can_be_aborted_while_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site() as site:
        going, goes_on = asyncio.Event(), asyncio.Event()
        prepare = site.gateway.prepare

        async def slowly(*args: object, **more: object) -> object:
            going.set()
            await goes_on.wait()
            return await prepare(*args, **more)  # type: ignore[arg-type]  # passed on

        monkeypatch.setattr(site.gateway, "prepare", slowly)
        for abort in ({"rid": "mine"}, {"abort_all": True}):
            going.clear()
            goes_on.clear()
            answer = asyncio.create_task(site.complete(request_id="mine"))
            await going.wait()
            assert (await site.post("/abort_request", rid="min")).json() == {"aborted": 0}
            assert (await site.post("/abort_request", **abort)).json() == {"aborted": 1}
            goes_on.set()
            refusal(await answer, 499)
        assert not site.engine.calls and (await site.post("/abort_request", abort_all=True)).json() == {"aborted": 0}


async def test_refused_and_plain_requests_leave_no_ticket() -> None:
    async with open_site() as site:
        for path in ("/v1/completions", "/tokenize"):
            for body in ({"prompt": "hi"}, {"prompt": 7}, {}):
                await site.post(path, **body)
        assert (await site.post("/abort_request", abort_all=True)).json() == {"aborted": 0}


async def test_a_silent_stream_sends_comments_where_told_to() -> None:
    async with open_site(keep_alive_seconds=0.01) as site:
        site.engine.hold = True
        answer = asyncio.create_task(site.complete(**STREAM))
        await until(lambda: bool(site.engine.held))
        call, on_event = site.engine.held[0]
        on_event(Delta(call.id, 0, "a", (97,)))
        await asyncio.sleep(0.05)
        on_event(SampleFinished(call.id, 0, "stop"))
        on_event(Completed(call.id, Usage()))
        text = (await answer).text
        assert ": keep-alive\n\n" in text and text.endswith("data: [DONE]\n\n")


def asgi(path: str, body: dict[str, object], headers: tuple[tuple[bytes, bytes], ...] = ()) -> dict[str, object]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *headers],
        "http_version": "1.1",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "scheme": "http",
        "server": ("server", 80),
        "client": ("client", 1),
    }


async def test_a_reader_that_stops_is_cut_off_and_its_call_ended() -> None:
    async with open_site(stall_seconds=0.02) as site:
        site.engine.hold = True
        incoming = asyncio.Queue[dict[str, object]]()
        incoming.put_nowait({"type": "http.request", "body": json.dumps(STREAM).encode(), "more_body": False})
        sent = list[dict[str, object]]()

        async def send(message: dict[str, object]) -> None:
            sent.append(message)
            if len(sent) > 1:
                await asyncio.Event().wait()  # the socket's buffers are full

        task = asyncio.create_task(site.app(asgi("/v1/completions", STREAM), incoming.get, send))  # type: ignore[arg-type]
        await until(lambda: bool(site.engine.held))
        call, on_event = site.engine.held[0]
        for place in range(4 * MERGE_FROM):
            on_event(Delta(call.id, 0, chr(97 + place % 26), (97 + place % 26,)))
        await asyncio.wait_for(task, 10)
        assert site.engine.aborted == [call.id] and site.gateway.num_open == 0


async def test_what_waits_for_a_slow_reader_is_merged_and_nothing_is_lost() -> None:
    async with open_site() as site:
        site.engine.hold = True
        answer = asyncio.create_task(site.http.post("/v1/completions", json={**STREAM, "n": 2}))
        await until(lambda: bool(site.engine.held))
        call, on_event = site.engine.held[0]
        told = {index: "".join(chr(97 + (place + index) % 26) for place in range(3000)) for index in (0, 1)}
        for place in range(3000):  # the loop reads none of them before the last is there
            for index in (0, 1):
                on_event(Delta(call.id, index, told[index][place], (97,)))
        for index in (0, 1):
            on_event(SampleFinished(call.id, index, "stop"))
        on_event(Completed(call.id, Usage(completion_tokens=6000)))
        chunks = [json.loads(line[6:]) for line in (await answer).text.split("\n\n") if line and "[DONE]" not in line]
        for index in (0, 1):
            own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
            assert "".join(choice["text"] for choice in own) == told[index]
            assert [choice["finish_reason"] for choice in own].count("stop") == 1
        assert len(chunks) <= MERGE_FROM + 10


def test_a_pulse_is_stuck_only_where_the_engine_was_asked_and_shows_nothing() -> None:
    now = 0.0
    pulse = Pulse(5.0, clock=lambda: now)
    asked: list[Future[EngineStats]] = []

    def ask() -> "Future[EngineStats]":
        asked.append(Future())
        return asked[-1]

    now = 100.0
    assert not pulse.stuck(ask), "nobody had asked"
    now = 104.0
    assert not pulse.stuck(ask) and len(asked) == 1
    now = 106.0
    assert pulse.stuck(ask)
    pulse.beat()
    assert not pulse.stuck(ask), "an event shows that it moves"
    now = 120.0
    assert pulse.stuck(ask)
    asked[0].set_result(None)  # type: ignore[arg-type]  # whatever it says
    assert not pulse.stuck(ask) and len(asked) == 2


async def test_health_is_503_while_a_step_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_site(stuck_seconds=0.01) as site:
        monkeypatch.setattr(site.engine, "stats", Future)
        assert (await site.http.get("/health")).status_code == 200
        await asyncio.sleep(0.03)
        for path in ("/health", "/readyz", "/ping"):
            answer = await site.http.get(path)
            assert answer.status_code == 503 and answer.json() == {"status": "stuck"}
        assert (await site.http.get("/livez")).status_code == 200


async def test_http_requests_are_counted_by_bounded_labels() -> None:
    async with open_site(api_keys=("k",)) as site:
        await site.http.get("/nowhere/" + "x" * 50)
        await site.http.post("/v1/completions", json={"prompt": "hi"}, headers={"x-api-key": "k"})
        text = (await site.http.get("/metrics")).text
        assert 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0' in text
        assert 'http_requests_total{handler="none",method="GET",status="4xx"} 1.0' in text
        await site.http.get("/v1/models", headers={"x-api-key": "k"})
        told = 'http_requests_total{handler="/v1/models",method="GET",status="2xx"} 1.0'
        assert told in (await site.http.get("/metrics")).text, "what is served from a router has its own name too"
        assert 'http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 1.0' in text


@asynccontextmanager
async def listening(**options: object) -> AsyncIterator[tuple[int, FakeEngine, Gateway]]:
    """The application behind real sockets."""
    asked = ServerOptions(**options)  # type: ignore[arg-type]
    models, engine = Models(asked), FakeEngine()
    gateway = models.first
    gateway.attach(Loaded(engine, tokenizer(), ("fake",), 8))
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(build_app(models), log_config=None, access_log=False, lifespan="off")
    web = uvicorn.Server(config)
    serving = asyncio.create_task(web._serve([listener]))
    try:
        yield listener.getsockname()[1], engine, gateway
    finally:
        web.should_exit = True
        await serving
        models.shared.close()


def request_bytes(body: dict[str, object]) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + raw


async def test_a_thousand_streams_at_once_all_end_with_done() -> None:
    count = 1000
    async with listening() as (port, engine, gateway):
        engine.hold = True

        async def one() -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes(STREAM))
            answer = await reader.read()
            writer.close()
            return answer

        streams = [asyncio.create_task(one()) for _ in range(count)]
        await until(lambda: len(engine.held) == count)
        assert gateway.num_open == count
        engine.release()
        answers = await asyncio.gather(*streams)
        assert all(b"data: [DONE]" in answer and answer.startswith(b"HTTP/1.1 200") for answer in answers)
        assert gateway.num_open == 0 and not engine.aborted


async def test_a_socket_that_is_never_read_is_given_up_and_the_others_go_on() -> None:
    async with listening(stall_seconds=0.2) as (port, engine, gateway):
        engine.hold = True
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", port))
        lazy.sendall(request_bytes(STREAM))
        await until(lambda: bool(engine.held))
        call, on_event = engine.held.pop()
        for _ in range(400):
            on_event(Delta(call.id, 0, "x" * 50_000, (97,)))
            await asyncio.sleep(0)
        await until(lambda: engine.aborted == [call.id])
        assert gateway.num_open == 0
        lazy.close()
