"""Clients that go, aborts, draining, an engine that dies: each request ends, and nothing of it runs on."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.messages import Delta
from tests.runtime.serving_site import Site, open_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site() as ready:
        yield ready


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


class Client:
    """A raw ASGI client that can go away in the middle."""

    def __init__(self, site: Site, path: str, body: dict[str, object], *, slow: bool = False) -> None:
        self.sent = list[dict]()
        self._slow = slow
        self._incoming = asyncio.Queue[dict]()
        self._incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "http_version": "1.1",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "http",
            "server": ("server", 80),
            "client": ("client", 1),
        }
        self.task = asyncio.create_task(site.app(scope, self._incoming.get, self._send))

    async def _send(self, message: dict) -> None:
        self.sent.append(message)
        if self._slow and len(self.sent) > 1:
            await asyncio.Event().wait()  # its buffers are full, and it reads no more

    def go(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})


PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": ["a", "b"]},
    "/generate": {"text": "hi"},
    "/branchpoint/score": {"segments": [{"type": "text", "text": "x"}], "options": ["a", "b"]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(PATHS))
async def test_a_client_that_goes_before_the_first_token_aborts_its_calls(site: Site, path: str, stream: bool) -> None:
    site.engine.hold = True
    client = Client(site, path, PATHS[path] | ({} if "score" in path else {"stream": stream}))
    await until(lambda: bool(site.engine.calls) and site.gateway.num_open == 1)
    await asyncio.sleep(0)
    client.go()
    await asyncio.wait_for(client.task, 60)
    assert sorted(site.engine.aborted) == sorted(call.id for call in site.engine.calls)
    assert site.gateway.num_open == 0 and not client.sent


async def test_a_client_that_goes_while_decoding_aborts_its_call(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "branchpoint.serving")
    site.engine.hold = True
    client = Client(site, "/v1/completions", {"prompt": "hi", "stream": True})
    await until(lambda: bool(site.engine.held))
    call, on_event = site.engine.held[0]
    on_event(Delta(call.id, 0, "a", (97,)))
    await until(lambda: len(client.sent) == 2)
    client.go()
    await asyncio.wait_for(client.task, 60)
    assert site.engine.aborted == [call.id]
    assert "the client is gone" in caplog.text
    on_event(Delta(call.id, 0, "b", (98,)))  # what still comes is nobody's
    await asyncio.sleep(0.01)
    assert len(client.sent) == 2


async def test_a_finished_request_aborts_nothing(site: Site) -> None:
    await site.complete(prompt=["a", "b"])
    assert site.engine.aborted == []


async def test_abort_request_ends_exactly_the_named_one(site: Site) -> None:
    site.engine.hold = True
    one = asyncio.create_task(site.complete(request_id="job-1"))
    two = asyncio.create_task(site.complete(request_id="job-11"))
    await until(lambda: len(site.engine.held) == 2)
    assert (await site.post("/abort_request", rid="job-1")).json() == {"aborted": 1}
    assert (await one).status_code == 499 and site.engine.aborted == [site.engine.calls[0].id]
    site.engine.release()
    assert (await two).status_code == 200
    assert (await site.post("/abort_request")).status_code == 400


async def test_an_abort_ends_the_calls_though_the_client_reads_slowly(site: Site) -> None:
    site.engine.hold = True
    client = Client(site, "/v1/completions", {"prompt": "hi", "stream": True, "request_id": "slow"}, slow=True)
    await until(lambda: bool(site.engine.held))
    call, on_event = site.engine.held[0]
    on_event(Delta(call.id, 0, "a", (97,)))
    await until(lambda: len(client.sent) == 2)
    assert (await site.post("/abort_request", rid="slow")).json() == {"aborted": 1}
    assert site.engine.aborted == [call.id] and not client.task.done()
    client.go()
    await asyncio.wait_for(client.task, 60)


async def test_requests_whose_ids_look_like_anothers_calls_disturb_nobody(site: Site) -> None:
    site.engine.hold = True
    several = asyncio.create_task(site.complete(prompt=["a", "b"], request_id="job"))
    await until(lambda: len(site.engine.held) == 2)
    likely = asyncio.create_task(site.complete(request_id="job-0"))
    await until(lambda: len(site.engine.held) == 3)
    ids = [call.id for call in site.engine.calls]
    assert len(set(ids)) == 3
    await site.post("/abort_request", rid="job-0")
    assert (await likely).status_code == 499 and site.engine.aborted == ids[2:]
    again = asyncio.create_task(site.complete(request_id="job-0"))  # its abort may not have reached the engine yet
    await until(lambda: len(site.engine.held) == 4)
    assert site.engine.calls[-1].id not in ids
    site.engine.release()
    assert (await several).status_code == 200 and (await again).json()["id"] == "job-0"


async def test_a_call_that_cant_be_sent_leaves_nothing_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_given: object) -> None:
        raise OSError("no socket")

    monkeypatch.setattr(site.engine, "submit", broken)
    assert (await site.complete(prompt=["a", "b"])).status_code == 500
    assert site.gateway.num_open == 0


async def test_flushing_waits_for_quiet(site: Site) -> None:
    site.engine.hold = True
    one = asyncio.create_task(site.complete())
    await until(lambda: bool(site.engine.held))
    assert (await site.http.post("/flush_cache")).status_code == 400 and site.engine.flushed == 0
    assert (await site.post("/abort_request", abort_all=True)).json() == {"aborted": 1}
    assert (await one).status_code == 499


async def test_flushing_waits_as_long_as_it_is_told(site: Site) -> None:
    site.engine.hold = True
    running = asyncio.create_task(site.complete())
    await until(lambda: bool(site.engine.held))
    assert (await site.http.post("/flush_cache?timeout=0.01")).status_code == 400 and site.engine.flushed == 0
    flushing = asyncio.create_task(site.http.post("/flush_cache?timeout=60"))
    site.engine.release()
    assert (await flushing).status_code == 200 and (await running).status_code == 200 and site.engine.flushed == 1


async def test_draining_lets_running_requests_end(site: Site) -> None:
    site.engine.hold = True
    running = asyncio.create_task(site.complete())
    await until(lambda: bool(site.engine.held))
    draining = asyncio.create_task(site.gateway.drain(5))
    await asyncio.sleep(0)
    refused = await site.complete()
    assert refused.status_code == 503 and refused.headers["retry-after"]
    site.engine.release()
    assert (await running).status_code == 200
    await asyncio.wait_for(draining, 60)


async def test_draining_ends_what_takes_too_long(site: Site) -> None:
    site.engine.hold = True
    running = asyncio.create_task(site.complete())
    await until(lambda: bool(site.engine.held))
    await site.gateway.drain(0.01)
    assert (await running).status_code == 503 and len(site.engine.aborted) == 1


async def test_a_dead_engine_answers_every_open_request(site: Site) -> None:
    site.engine.hold = True
    whole = asyncio.create_task(site.complete())
    stream = asyncio.create_task(site.complete(stream=True))
    await until(lambda: len(site.engine.held) == 2)
    call, on_event = site.engine.held[1]
    on_event(Delta(call.id, 0, "a", (97,)))
    await asyncio.sleep(0.01)
    assert site.gateway.requests.fail_all(EngineDead("The engine died.")) == 2
    assert (await whole).status_code == 500
    assert (await stream).text.endswith("data: [DONE]\n\n") and "The engine died." in (await stream).text
