"""Programs that run on the server: one request for all their calls, events by variable, limits, and the run that comes back."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pydantic
import pytest

import branchpoint as bp
from branchpoint.lang.serve import programs_endpoint
from branchpoint.lang.serve_client import GatewayClient
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import EngineDead
from branchpoint.runtime.messages import Call, Completed, Event, Failed, Hints
from branchpoint.runtime.process import EngineThread, build_engine
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.serving.gateway import Loaded, State
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.serving.logs import JsonLines
from tests.lang.http_site import Site
from tests.runtime.serving_site import open_site, refusal
from tests.server.test_load import asgi
from tests.server.waiting import until


class Place(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=3)
    size: int = pydantic.Field(ge=0, le=9)


@bp.function
def four(s: bp.State, topic: str) -> dict[str, Any]:
    s += bp.user(f"About {topic}.") + bp.assistant(bp.gen("first", max_tokens=5))
    s += bp.user("Which?") + bp.assistant(bp.select("kind", ["good", "bad"]))
    with s.fork(2) as (one, other):
        one += bp.user("How many?") + bp.assistant(bp.gen("n", int))
        other += bp.user("Where?") + bp.assistant(bp.gen("place", Place))
    return {"topic": topic, "n": one["n"], "place": other["place"]}


@pytest.fixture(scope="module")
def engine() -> Iterator[bp.Engine]:
    loaded = build_engine(EngineConfig(model="dummy:llama", context_length=512, num_pages=128, threads=1, grammar_workers=1))
    with bp.Engine.around(EngineThread(loaded), loaded.tokenizer) as engine:
        yield engine


@pytest.fixture(scope="module")
def site(engine: bp.Engine) -> Iterator[Site]:
    site = Site(
        Loaded(engine.backend.client, engine.tokenizer, ("dummy",), 8),
        max_program_nodes=60,
        max_program_tokens=400,
        max_programs=2,
    )
    yield site
    site.close()


class Counting(httpx.AsyncHTTPTransport):
    """The real link, which counts what goes over it."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        return await super().handle_async_request(request)


def test_a_program_of_four_calls_needs_one_round_trip_and_gives_the_same_run(site: Site, engine: bp.Engine) -> None:
    link = Counting()
    with bp.RuntimeEndpoint(site.url, "secret", transport=link) as endpoint:
        there = endpoint.run_remote(four, topic="pears", seed=5, temperature=0.7)
        assert link.paths == ["/v1/programs"]
        over_http = four.run(topic="pears", seed=5, temperature=0.7, backend=endpoint)
        assert len(link.paths) > 5
    here = four.run(topic="pears", seed=5, temperature=0.7, backend=engine)
    assert there.value == here.value == over_http.value
    assert isinstance(there["place"][1], Place)
    assert isinstance(there["n"][0], int)
    assert (there.text(), there.seed, there.messages()) == (here.text(), 5, here.messages())
    assert there.meta("first").tokens == here.meta("first").tokens
    assert there.meta("kind").choices[0].probability == pytest.approx(here.meta("kind").choices[0].probability, abs=1e-4)
    assert sum(record.usage.completion_tokens for record in there.report().records) > 0


def test_a_saved_graph_runs_there_with_other_arguments(site: Site) -> None:
    graph = bp.load_graph(four.compile().to_json())
    with bp.RuntimeEndpoint(site.url, "secret") as endpoint:
        run = endpoint.run_remote(graph, "plums", seed=1)
    assert run.value["topic"] == "plums"
    assert "About plums." in run.text()


def test_a_program_that_is_no_graph_says_so_with_the_line(site: Site) -> None:
    @bp.function
    def decides(s: bp.State) -> None:
        s += "a" + bp.gen("x", max_tokens=2)
        if s["x"] == "b":
            s += "c"

    with bp.RuntimeEndpoint(site.url, "secret") as endpoint, pytest.raises(bp.Untraceable, match=r"test_serve.py:\d+"):
        endpoint.run_remote(decides)


def post(site: Site, program: "bp.Program[Any] | dict[str, Any]", key: str = "secret", **fields: Any) -> httpx.Response:
    graph = program if isinstance(program, dict) else json.loads(program.compile().to_json())
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{site.url}/v1/programs", json={"program": graph, **fields}, headers=headers, timeout=30)


def test_the_answer_has_the_results_by_variable(site: Site) -> None:
    body = post(site, four, arguments={"topic": "figs"}, seed=2).json()
    assert (body["object"], body["model"], body["program"], body["seed"]) == ("program", "dummy", "four", 2)
    assert body["value"]["topic"] == "figs"
    assert set(body["variables"]) == {"first", "kind", "n", "place"}
    assert body["variables"]["place"][1].keys() == {"name", "size"}
    assert body["incomplete"] == {}
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant"]
    assert "recording" not in body


def test_events_come_by_variable_and_the_last_is_the_whole(site: Site) -> None:
    answer = post(site, four, arguments={"topic": "figs"}, seed=2, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in answer.text.split("\n\n") if block]
    events = [(block["event"], json.loads(block["data"])) for block in blocks]
    whole = events[-1][1]
    assert events[-1][0] == "done"
    texts: dict[str, str] = {}
    for name, data in events[:-1]:
        if name == "delta":
            texts[data["name"]] = texts.get(data["name"], "") + data["text"]
    values = {data["name"]: (data["value"], data["branch"]) for name, data in events if name == "value"}
    assert texts["first"] == whole["variables"]["first"] == values["first"][0]
    assert values["n"] == (whole["variables"]["n"][0], [0])
    assert values["place"][1] == [1]


@bp.function
def endless(s: bp.State) -> None:
    s += "a" + bp.gen("x", ignore_eos=True, max_tokens=480)


def test_what_a_program_may_spend_is_enforced_while_it_runs(site: Site) -> None:
    spent = post(site, endless)
    assert (spent.status_code, spent.json()["error"]["param"]) == (400, "max_total_tokens")
    assert "budget of 400 tokens" in spent.json()["error"]["message"]
    assert "budget of 7 tokens" in post(site, endless, max_total_tokens=7).json()["error"]["message"]
    late = post(site, endless, deadline=0.0).json()["error"]
    assert "deadline of 0.0" in late["message"] and late["param"] == "deadline"
    streamed = post(site, endless, max_total_tokens=7, stream=True).text
    assert '"event' not in streamed.split("\n\n")[-2]
    assert streamed.split("\n\n")[-2].startswith("event: error\n")


def test_no_program_takes_longer_than_the_server_allows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = msgspec.structs.replace(site.gateway.settings, max_program_seconds=0.0)
    monkeypatch.setattr(site.gateway, "settings", settings)
    for fields in ({}, {"deadline": 100.0}):
        assert "deadline of 0.0" in post(site, endless, **fields).json()["error"]["message"]


GRAPH: dict[str, Any] = {"version": 1, "program": "p", "nodes": [{"op": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"program": {**GRAPH, "nodes": GRAPH["nodes"] * 61}}, "may have 60 nodes"),
        ({"program": {**GRAPH, "version": 9}}, "version 9"),
        ({"program": {**GRAPH, "nodes": [{"op": "python", "code": "1"}]}}, "isn't a graph"),
        ({"program": {**GRAPH, "nodes": [{"op": "fork", "children": list(range(1, 100))}]}}, "more than 60 states"),
        ({"program": GRAPH, "arguments": {"x": 1}}, "arguments must be"),
        ({"program": GRAPH, "options": {"heat": 1}}, "options"),
        ({"program": GRAPH, "options": {"temperature": -1}}, "temperature"),
        ({"program": GRAPH, "more": 1}, "more is no field"),
        ({}, "program"),
    ],
)
def test_what_breaks_the_rules_is_refused_before_it_runs(site: Site, fields: dict[str, Any], told: str) -> None:
    answer = httpx.post(f"{site.url}/v1/programs", json=fields, headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 400
    assert told in answer.json()["error"]["message"]


def test_it_is_behind_the_key_and_a_failure_has_its_status(site: Site) -> None:
    assert post(site, GRAPH, key="wrong").status_code == 401
    long = {**GRAPH, "nodes": [{"op": "text", "text": "x" * 4000}, {"op": "gen", "name": "x"}]}
    answer = post(site, long)
    assert answer.status_code == 400
    assert "gen 'x' of program 'p'" in answer.json()["error"]["message"]
    with bp.RuntimeEndpoint(site.url, "secret") as endpoint, pytest.raises(bp.BackendError, match="budget of 400") as caught:
        endpoint.run_remote(endless)
    assert caught.value.status == 400


async def test_a_program_on_the_server_is_waited_for_in_a_loop_too(site: Site, engine: bp.Engine) -> None:
    with bp.RuntimeEndpoint(site.url, "secret") as endpoint:
        there = await endpoint.arun_remote(four, topic="pears", seed=5, temperature=0.7)
    assert there.value == (await four.arun(topic="pears", seed=5, temperature=0.7, backend=engine)).value


async def test_the_texts_of_a_program_on_the_server_come_as_they_are_made(site: Site) -> None:
    link = Counting()
    with (
        bp.RuntimeEndpoint(site.url, "secret", transport=link) as endpoint,
        endpoint.stream_remote(four, "figs", seed=2) as remote,
    ):
        told = [piece async for piece in remote]
        run = remote.run
        assert list(remote) == told
    assert link.paths == ["/v1/programs"]
    texts = {name: "".join(piece.text for piece in told if piece.variable == name) for name in ("first", "n")}
    assert texts == {"first": run["first"], "n": str(run["n"][0])}
    assert {piece.branch for piece in told if piece.variable == "place"} == {(1,)}
    assert run.state.text() == run.text()


def ended(engine: bp.Engine) -> tuple[int, int]:
    """Calls that came to their end, and calls that didn't, once nothing runs."""
    deadline = time.monotonic() + 20
    while (stats := engine.stats()).running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return stats.completed_calls, stats.failed_calls


async def test_leaving_a_program_on_the_server_ends_it(site: Site, engine: bp.Engine) -> None:
    completed, failed = ended(engine)
    with bp.RuntimeEndpoint(site.url, "secret") as endpoint:
        with endpoint.stream_remote(endless) as remote:
            first = await anext(aiter(remote))
        assert first.variable == "x"
        with pytest.raises(bp.BackendError, match="cancelled"):
            _ = remote.run
        with pytest.raises(bp.BackendError, match="cancelled"):
            list(remote)
        assert await asyncio.to_thread(ended, engine) == (completed, failed + 1)
        waiting = asyncio.create_task(endpoint.arun_remote(endless))
        while not engine.stats().running:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await asyncio.to_thread(ended, engine) == (completed, failed + 2)


async def test_a_client_that_goes_ends_its_program(site: Site, engine: bp.Engine) -> None:
    completed, failed = ended(engine)
    graph = json.loads(endless.compile().to_json())
    async with httpx.AsyncClient(headers={"Authorization": "Bearer secret"}) as client:
        asked = asyncio.create_task(client.post(f"{site.url}/v1/programs", json={"program": graph}))
        while not engine.stats().running:
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert await asyncio.to_thread(ended, engine) == (completed, failed + 1)


async def test_no_more_programs_run_at_once_than_may(site: Site, engine: bp.Engine) -> None:
    with bp.RuntimeEndpoint(site.url, "secret", retries=0) as endpoint:
        with endpoint.stream_remote(endless) as one, endpoint.stream_remote(endless) as two:
            await anext(aiter(one))
            await anext(aiter(two))
            refused = post(site, four, arguments={"topic": "figs"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "2 programs run, as many as max_programs allows" in refused.json()["error"]["message"]
        await asyncio.to_thread(ended, engine)
        while post(site, four, arguments={"topic": "figs"}).status_code == 503:
            await asyncio.sleep(0.02)
        with pytest.raises(bp.BackendError, match="budget of 400"):
            _ = endpoint.stream_remote(endless).run


@pytest.mark.parametrize("state", [State.LOADING, State.DRAINING])
def test_a_program_whose_engine_is_gone_is_answered(state: State) -> None:
    site = Site()
    try:
        site.engine.hold = True
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(post, site, endless)
            while not site.engine.held:
                time.sleep(0.01)
            site.gateway.state = state  # as the server does, before it answers what is open
            for call, on_event in site.engine.held:
                on_event(Failed(call.id, EngineDead.kind, "The engine died."))
            assert answer.result(20).status_code == 500
        site.gateway.state, site.engine.hold, site.engine.say = State.READY, False, "yes"
        assert post(site, endless).status_code == 200
    finally:
        site.close()


HI: dict[str, Any] = {
    "program": {**GRAPH, "nodes": [*GRAPH["nodes"], {"op": "gen", "name": "x", "options": {"max_tokens": 3}}]},
    "stream": True,
}


async def test_a_program_leaves_one_line_with_what_its_calls_cost(caplog: pytest.LogCaptureFixture) -> None:
    async with open_site(more=[programs_endpoint()], adapters=("sql",)) as site:
        with caplog.at_level("INFO", logger="branchpoint.serving"):
            for model in ("fake", "sql"):
                answer = await site.http.post("/v1/programs", json=HI | {"model": model}, headers={"X-Request-Id": "mine"})
                assert answer.headers["x-request-id"] == "mine" and '"id":"mine"' in answer.text
                await until(lambda: bool(caplog.records))
                (line,) = caplog.records
                told = json.loads(JsonLines().format(line))
                assert told["request_id"] == "mine" and told["model"] == model and told["path"] == "/v1/programs"
                assert (told["calls"], told["completion_tokens"], told["finish"], told["stream"]) == (1, 3, "done", True)
                assert line.getMessage().startswith("mine: program=p model=")
                caplog.clear()


async def test_a_silent_program_sends_comments_and_one_that_takes_too_long_is_504() -> None:
    async with open_site(more=[programs_endpoint()], keep_alive_seconds=0.01) as site:
        site.engine.hold = True
        answer = asyncio.create_task(site.post("/v1/programs", **HI))
        await until(lambda: bool(site.engine.held))
        await asyncio.sleep(0.05)
        site.engine.release()
        assert (await answer).text.startswith(": keep-alive\n\n") and '"value":"abc"' in (await answer).text
        site.engine.hold = True
        for seconds, status in (("0.05", 504), ("soon", 400)):
            late = await site.http.post("/v1/programs", json=HI | {"stream": False}, headers={"X-Request-Timeout": seconds})
            refusal(late, status, None if status == 504 else "X-Request-Timeout")


async def test_a_program_whose_reader_stops_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with open_site(more=[programs_endpoint()], stall_seconds=0.02) as site:
        incoming = asyncio.Queue[dict[str, object]]()
        incoming.put_nowait({"type": "http.request", "body": json.dumps(HI).encode(), "more_body": False})

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()  # the socket's buffers are full

        await asyncio.wait_for(site.app(asgi("/v1/programs", HI), incoming.get, send), 10)  # type: ignore[arg-type]
        assert "the client reads nothing, cut off" in caplog.text


async def test_a_program_ends_under_the_name_that_its_calls_had() -> None:
    async with open_site() as site:
        client = GatewayClient(site.gateway)
        space, over = client.enter(Caller("a", "a"), "salt"), asyncio.Event()
        call = Call("1", (104,), SamplingParams(max_tokens=1), namespace=space, hints=Hints(program="p"))
        client.submit(call, lambda event: over.set() if isinstance(event, Completed) else None)
        await asyncio.wait_for(over.wait(), 10)
        events = list[Event]()
        client.submit(msgspec.structs.replace(call, id="2"), events.append)
        client.abort("2")  # before its task has begun
        await until(lambda: bool(events))
        assert isinstance(events[0], Failed) and events[0].kind == "aborted" and not client._tasks
        client.end_program("p")
        client.end_program("another")
        await asyncio.sleep(0.05)
        assert site.engine.ended == [(site.engine.calls[0].namespace, "p")]


def test_after_all_that_nothing_runs(site: Site, engine: bp.Engine) -> None:
    assert site.gateway.num_open == 0
    assert engine.stats().running == 0
