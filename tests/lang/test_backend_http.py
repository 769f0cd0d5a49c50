"""The HTTP backend, against the real application around a fake engine, and against answers made up to go wrong."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import msgspec
import pytest

import branchpoint as bp
from branchpoint.constrained.spec import Regex
from branchpoint.lang.backends.base import GenerateRequest, ScoreRequest
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import EngineDead, InvalidRequest
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Hints, Ids, SampleFinished, ScoreCall, Text, Usage
from branchpoint.runtime.process import EngineThread, build_engine
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.serving.gateway import Loaded
from tests.lang.http_site import Site
from tests.runtime.serving_fake import EOS


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    yield running
    engine = running.engine
    engine.failure, engine.late, engine.hold = None, 0, False
    engine.calls.clear()
    engine.aborted.clear()


@pytest.fixture
def endpoint(site: Site) -> Iterator[bp.RuntimeEndpoint]:
    with bp.RuntimeEndpoint(site.url, "secret") as endpoint:
        yield endpoint


def scripted(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> bp.RuntimeEndpoint:
    return bp.RuntimeEndpoint("http://server", transport=httpx.MockTransport(answer), **options)


async def events_of(endpoint: bp.RuntimeEndpoint, request: GenerateRequest) -> list[Event]:
    try:
        return [event async for event in endpoint.generate(request)]
    finally:
        await endpoint.close()


PLAIN = GenerateRequest("id", (Text("hi"),))


def lines(*events: Event) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


WHOLE = (
    Delta("id", 0, "a\u2028b\x85ü\n", (1, 2)),
    SampleFinished("id", 0, "stop", "!"),
    Completed("id", Usage(prompt_tokens=2, completion_tokens=2)),
)


def test_a_program_runs_over_http(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    @bp.function
    def program(s: bp.State) -> str:
        s += "Say: " + bp.gen("x", max_tokens=4, temperature=0.5) + bp.select("y", ["!", "??"])
        s += bp.gen("z", regex="[a-z]*")
        return s.text()

    run = program.run(backend=endpoint, config=bp.RunConfig(namespace="tenant", seed=3))
    assert run.value == "Say: abcd!abc"
    assert (run.meta("x").cached_tokens, run.meta("x").completion_tokens) == (1, 4)
    first, score, last = site.engine.calls
    assert isinstance(first, Call)
    assert isinstance(last, Call)
    assert isinstance(score, ScoreCall)
    assert (first.sampling.max_tokens, first.sampling.temperature, first.sampling.seed) == (4, 0.5, run.meta("x").seed)
    assert {call.namespace for call in site.engine.calls} == {"tenant"}
    assert first.hints.program == last.hints.program != "program"
    assert last.constraint == Regex("[a-z]*")
    assert last.prompt[: len(b"Say: abcd")] == tuple(b"Say: abcd")


def test_the_next_request_tells_which_programs_have_ended(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    @bp.function
    def program(s: bp.State) -> None:
        s += "Say: " + bp.gen("x", max_tokens=1) + bp.select("y", ["!", "?"])

    for namespace in ("", "", "tenant", ""):
        program.run(backend=endpoint, config=bp.RunConfig(namespace=namespace))
    calls = [call.hints for call in site.engine.calls]
    assert [len(hints.ended) for hints in calls] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert calls[2].ended == (calls[0].program,)
    assert calls[6].ended == (calls[2].program,), "not while another namespace calls"


def test_every_part_of_a_request_arrives(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    sampling = SamplingParams(
        max_tokens=2, n=2, logprobs=2, prompt_logprobs=0, logit_bias=((5, 1.5),), seed=2**64 - 1, stop=("x",)
    )
    hints = Hints("program", (0, 1), siblings=2, returns=True)
    request = GenerateRequest("call-1", (Text("a"), Ids((70, 255), "")), sampling, None, heal=False, hints=hints)

    async def main() -> list[Event]:
        return [event async for event in endpoint.generate(request)]

    events = endpoint.dispatcher.run(main())
    (call,) = site.engine.calls
    assert call.id.startswith("call-1")
    assert call == Call(call.id, (97, 70, 255), sampling, hints=hints)
    assert isinstance(events[0], Delta)
    assert events[0].logprobs[0].text == b"a"
    assert [index for index, _, _ in events[0].logprobs[0].top] == [97, 98]
    assert sum(isinstance(event, SampleFinished) for event in events) == 2
    assert isinstance(events[-1], Completed)
    assert len(events[-1].prompt_logprobs) == 3


def test_scores_count_the_options_own_tokens(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    request = ScoreRequest("score-1", (Text("a"),), ("bc", "d"), with_end=True)
    scored = endpoint.dispatcher.run(endpoint.score(request))
    assert [len(row) for row in scored.logprobs] == [3, 2]
    (call,) = site.engine.calls
    assert isinstance(call, ScoreCall)
    assert [tokens[-1] for tokens in call.continuations] == [EOS, EOS]


def test_a_program_is_the_same_over_http_and_in_process() -> None:
    @bp.function
    def program(s: bp.State) -> list[Any]:
        s += bp.user("Q") + bp.assistant("So" + bp.gen("x", max_tokens=8, stop=" ") + bp.select("y", [" yes", " no"]))
        with s.fork(2) as branches:
            branches += lambda number: bp.user(str(number)) + bp.assistant(bp.gen("n", int) + bp.gen("r", regex="[a-z]{2,9}"))
        return [s["x"], s["y"], s["n"], s["r"], s.text(), s.meta("y").choices]

    loaded = build_engine(EngineConfig(model="dummy:llama", context_length=256, num_pages=64, threads=1, grammar_workers=1))
    with bp.Engine.around(EngineThread(loaded), loaded.tokenizer) as engine:
        site = Site(Loaded(engine.backend.client, loaded.tokenizer, ("dummy",), 8))
        try:
            with bp.RuntimeEndpoint(site.url, "secret") as endpoint:
                here, there = (program.run(backend=backend, seed=11).value for backend in (engine, endpoint))
        finally:
            site.close()
    assert here[:-1] == there[:-1]
    for one, other in zip(here[-1], there[-1], strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_cancelling_aborts_on_the_server(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    site.engine.hold = True
    program = bp.function(lambda s: s.__iadd__("hi" + bp.gen("x")) and None)
    run = program.run(backend=endpoint, stream=True)
    while not site.engine.held:
        assert not run.done
    run.cancel()
    with pytest.raises(bp.ProgramError, match="aborted"):
        run.wait()
    (call, _), *_ = site.engine.held
    for _ in range(500):
        if site.engine.aborted:
            break
        threading.Event().wait(0.01)
    assert site.engine.aborted == [call.id]
    site.engine.held.clear()


def test_a_refusal_is_quoted_with_its_status(endpoint: bp.RuntimeEndpoint) -> None:
    with pytest.raises(bp.ProgramError, match=r"status 400.*maximum context length is 128") as caught:
        bp.function(lambda s: s.__iadd__("x" * 3000 + bp.gen("x")) and None).run(backend=endpoint)
    assert caught.value.status == 400
    assert '"param":"segments"' in caught.value.body


def test_a_wrong_key_is_a_401(site: Site) -> None:
    with bp.RuntimeEndpoint(site.url, "wrong") as endpoint, pytest.raises(bp.BackendError, match="401 Unauthorized") as caught:
        bp.get_server_info(endpoint)
    assert caught.value.status == 401


def test_a_failure_before_the_first_event_is_a_status(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    site.engine.failure = ("internal", "broken")
    with pytest.raises(bp.BackendError, match=r"500 .*broken") as caught:
        endpoint.dispatcher.run(events_of(endpoint, PLAIN))
    assert caught.value.status == 500


def test_a_failure_while_streaming_is_the_engines_own(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    site.engine.failure, site.engine.late = ("engine_dead", "gone"), 2
    with pytest.raises(EngineDead, match="gone"):
        endpoint.dispatcher.run(events_of(endpoint, PLAIN))


def test_cache_and_facts_can_be_asked_for(site: Site, endpoint: bp.RuntimeEndpoint) -> None:
    before = site.engine.flushed
    bp.flush_cache(endpoint)
    assert site.engine.flushed == before + 1
    assert bp.get_server_info(endpoint)["context_length"] == 128


def test_roles_are_written_in_the_servers_template(endpoint: bp.RuntimeEndpoint) -> None:
    run = bp.function(lambda s: s.__iadd__(bp.user("Q") + bp.assistant(bp.gen("x"))) and None).run(backend=endpoint)
    assert run.text() == "user: Q\nassistant: abc\n"


def test_nobody_there_is_told_with_the_address() -> None:
    with (
        bp.RuntimeEndpoint("http://127.0.0.1:1", retries=1) as endpoint,
        pytest.raises(bp.BackendError, match=r"Can't reach the server at http://127\.0\.0\.1:1.*running"),
    ):
        bp.get_server_info(endpoint)


@pytest.mark.parametrize("url", ["server:8000", "ftp://server", "", "http://"])
def test_an_address_is_checked_at_once(url: str) -> None:
    with pytest.raises(InvalidRequest, match="address"):
        bp.RuntimeEndpoint(url)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_no_header_holds_is_refused_at_once(key: str) -> None:
    with pytest.raises(InvalidRequest, match="api_key must be printable ASCII"):
        bp.RuntimeEndpoint("http://server", api_key=key)


async def test_lines_are_cut_at_newlines_only_wherever_they_arrive() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        raw = lines(*WHOLE)
        for start in range(0, len(raw), 7):
            yield raw[start : start + 7]

    endpoint = scripted(lambda request: httpx.Response(200, content=pieces()))
    assert await events_of(endpoint, PLAIN) == list(WHOLE)


async def test_a_refused_connection_is_tried_again() -> None:
    tries = []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(request)
        if len(tries) < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=lines(*WHOLE))

    assert len(await events_of(scripted(answer), PLAIN)) == 3
    assert len(tries) == 3


async def test_a_busy_server_is_asked_again_when_it_says_so() -> None:
    tries = []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(request)
        if len(tries) < 2:
            return httpx.Response(503, headers={"Retry-After": "0"}, json={"error": {"message": "full"}})
        return httpx.Response(200, content=lines(*WHOLE))

    assert len(await events_of(scripted(answer), PLAIN)) == 3
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("refusal", "retries", "asked"),
    [
        (httpx.Response(503, headers={"Retry-After": "0"}, json={"error": {"message": "full"}}), 2, 3),
        (httpx.Response(503, json={"error": {"message": "full"}}), 2, 1),
        (httpx.Response(500, text="full"), 2, 1),
        (httpx.Response(429, headers={"Retry-After": "0"}, text="full"), 2, 1),
    ],
)
async def test_nothing_else_is_asked_again(refusal: httpx.Response, retries: int, asked: int) -> None:
    tries = []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(request)
        return httpx.Response(refusal.status_code, headers=refusal.headers, content=refusal.content)

    with pytest.raises(bp.BackendError, match="full") as caught:
        await events_of(scripted(answer, retries=retries), PLAIN)
    assert caught.value.status == refusal.status_code
    assert len(tries) == asked


async def test_an_answer_that_breaks_off_is_not_asked_again() -> None:
    tries = []

    async def pieces() -> AsyncIterator[bytes]:
        yield lines(WHOLE[0])
        raise httpx.ReadError("reset")

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append(request)
        return httpx.Response(200, content=pieces())

    with pytest.raises(bp.BackendError, match="broke off: ReadError: reset"):
        await events_of(scripted(answer), PLAIN)
    assert len(tries) == 1


async def test_an_answer_without_its_last_event_is_an_error() -> None:
    with pytest.raises(bp.BackendError, match="before its last event"):
        await events_of(scripted(lambda request: httpx.Response(200, content=lines(*WHOLE[:2]))), PLAIN)


async def test_what_is_no_event_is_quoted() -> None:
    with pytest.raises(bp.BackendError, match="no event: b'<html>'"):
        await events_of(scripted(lambda request: httpx.Response(200, content=b"<html>\n")), PLAIN)


async def test_silence_ends_with_the_timeout() -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("too long")

    endpoint = bp.RuntimeEndpoint("http://server", transport=httpx.MockTransport(answer))
    with pytest.raises(bp.BackendError, match="no answer: ReadTimeout"):
        await events_of(endpoint, PLAIN)


async def test_what_was_rendered_once_is_not_asked_again() -> None:
    bodies = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return httpx.Response(200, json={"prompt": f"text {len(bodies)}"})

    endpoint = scripted(answer)
    asked = [[{"role": "user", "content": "U"}], [{"role": "user", "content": "V"}], [{"role": "user", "content": "U"}]]
    texts = [await endpoint.render(messages, add_generation_prompt=True) for messages in asked]
    texts.append(await endpoint.render(asked[0], add_generation_prompt=False))
    await endpoint.close()
    assert texts == ["text 1", "text 2", "text 1", "text 3"]


class Endless(httpx.AsyncByteStream):
    """One event, then nothing, until it is closed."""

    closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield lines(WHOLE[0])
        await asyncio.sleep(60)

    async def aclose(self) -> None:
        self.closed = True


async def test_leaving_early_closes_the_answer() -> None:
    stream = Endless()
    endpoint = scripted(lambda request: httpx.Response(200, stream=stream))
    events = endpoint.generate(PLAIN)
    assert isinstance(events, AsyncGenerator)
    async with aclosing(events):
        assert await anext(events) == WHOLE[0]
        assert not stream.closed
    assert stream.closed
    await endpoint.close()


async def test_cancelling_the_task_closes_the_answer() -> None:
    stream = Endless()
    endpoint = scripted(lambda request: httpx.Response(200, stream=stream))
    reading = asyncio.create_task(events_of(endpoint, PLAIN))
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert stream.closed


async def test_text_that_is_no_unicode_is_refused() -> None:
    endpoint = scripted(lambda request: httpx.Response(200))
    with pytest.raises(InvalidRequest, match="surrogate"):
        await events_of(endpoint, GenerateRequest("id", (Text("\ud800"),)))


@bp.function
def greeting(s: bp.State) -> None:
    s += "Hello " + bp.gen("x", max_tokens=3)


@pytest.mark.parametrize("told", [b"event: delta\ndata: {}", b"event: delta\ndata: no", b'event: error\ndata: {"error": "x"}'])
async def test_a_streamed_program_whose_events_cant_be_read_ends_with_that(told: bytes) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=told + b"\n\n"))
    with bp.RuntimeEndpoint("http://server", transport=transport) as endpoint:
        remote = endpoint.stream_remote(greeting)
        async with asyncio.timeout(10):
            with pytest.raises(bp.BackendError, match="can't be read"):
                [piece async for piece in remote]
            with pytest.raises(bp.BackendError, match="can't be read"):
                await remote.arun()


async def test_a_streamed_program_ends_whatever_keeps_it_from_the_server() -> None:
    def odd(_: httpx.Request) -> httpx.Response:
        raise RuntimeError("odd")

    endpoint = bp.RuntimeEndpoint("http://server", transport=httpx.MockTransport(odd))
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="odd"):
            [piece async for piece in endpoint.stream_remote(greeting)]
        await asyncio.to_thread(endpoint.shutdown)
        with pytest.raises(bp.BackendError, match="closed"):
            [piece async for piece in endpoint.stream_remote(greeting)]


def test_a_server_of_several_models_is_asked_for_the_one_that_is_named(site: Site) -> None:
    with (
        bp.RuntimeEndpoint(site.url, "secret", model="fake") as right,
        bp.RuntimeEndpoint(site.url, "secret", model="no") as wrong,
    ):

        @bp.function
        def one(s: bp.State) -> str:
            s += "a" + bp.gen("x", max_tokens=2)
            return str(s["x"])

        assert one.run(backend=right).value == right.run_remote(one).value == "ab"
        for ask in (lambda: one.run(backend=wrong).value, lambda: wrong.run_remote(one)):
            with pytest.raises((bp.ProgramError, bp.BackendError), match="'no' does not exist"):
                ask()
