"""Several models in one server: named by requests, counted apart, loaded, lost and drained each for itself."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest

from branchpoint.errors import BranchpointError
from branchpoint.lang.serve import programs_endpoint
from branchpoint.runtime import division
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.division import check_division
from branchpoint.runtime.errors import CapacityError, EngineDead, InvalidRequest, ModelError
from branchpoint.runtime.serving.app import _ROUTES, build_app
from branchpoint.runtime.serving.doctor import read_look
from branchpoint.runtime.serving.gateway import Loaded, State
from branchpoint.runtime.serving.life import Loading
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.served import served_models
from branchpoint.runtime.serving.server import Server, bind
from tests.runtime.serving_fake import FakeEngine
from tests.runtime.serving_site import refusal, tokenizer
from tests.server.waiting import until

NAMES = (("small", "s"), ("big",))
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/embeddings": {"input": "hi"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/generate": {"text": "hi"},
    "/branchpoint/score": {"segments": [{"type": "text", "text": "a"}], "options": ["b"]},
}


def engine(name: str) -> FakeEngine:
    made = FakeEngine()
    made.info = msgspec.structs.replace(made.info, name=name)
    return made


@dataclass
class Two:
    http: httpx.AsyncClient
    models: Models
    small: FakeEngine
    big: FakeEngine


@asynccontextmanager
async def two(loaded: tuple[bool, bool] = (True, True), **options: object) -> AsyncIterator[Two]:
    models = Models(ServerOptions(**options), NAMES)  # type: ignore[arg-type]
    engines = [engine(names[0]) for names in NAMES]
    for gateway, one, names, there in zip(models, engines, NAMES, loaded, strict=True):
        if there:
            gateway.attach(Loaded(one, tokenizer(), names, 8))
    transport = httpx.ASGITransport(build_app(models, [programs_endpoint()]), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield Two(http, models, *engines)
    assert all(gateway.num_open == 0 for gateway in models)
    models.shared.close()


@pytest.mark.parametrize("path", list(BODIES))
async def test_a_request_goes_to_the_model_that_it_names_by_any_of_its_names_or_to_the_first(path: str) -> None:
    async with two() as site:
        for name, wanted in ((None, site.small), ("s", site.small), ("small", site.small), ("big", site.big)):
            before = len(wanted.calls)
            answer = await site.http.post(path, json=BODIES[path] | {"model": name})
            assert answer.status_code == 200, answer.text
            assert len(wanted.calls) > before, name
        before = len(site.big.calls)
        assert (await site.http.post(f"{path}?model=big", json=BODIES[path])).status_code == 200 and len(site.big.calls) > before
        answer = await site.http.post(path, json=BODIES[path] | {"model": "huge"})
        assert answer.status_code == 404 and "small, s, big" in answer.text
        if not path.startswith("/v1/messages"):
            assert "'huge'" in refusal(answer, 404, "model")


def test_every_route_that_takes_a_body_takes_a_model() -> None:
    for route in (*_ROUTES, programs_endpoint()):
        assert "model" in route.form.__struct_encode_fields__, route.paths


async def test_answers_carry_the_models_first_name_and_a_list_names_all() -> None:
    async with two() as site:
        chat = BODIES["/v1/chat/completions"]
        for asked, told in (("s", "small"), ("big", "big")):
            assert (await site.http.post("/v1/chat/completions", json=chat | {"model": asked})).json()["model"] == told
        cards = (await site.http.get("/v1/models")).json()["data"]
        assert [(card["id"], card["root"]) for card in cards] == [("small", "small"), ("s", "small"), ("big", "big")]
        assert (await site.http.get("/v1/models/big")).json()["root"] == "big"
        refusal(await site.http.get("/v1/models/huge"), 404, "model")


async def test_native_routes_take_the_model_from_the_address_and_mean_the_first_without_it() -> None:
    async with two() as site:
        for path in ("/get_model_info", "/model_info", "/get_server_info", "/server_info"):
            for query, name in (("", "small"), ("?model=s", "small"), ("?model=big", "big")):
                assert (await site.http.get(path + query)).json()["served_model_name"] == name
        loads = (await site.http.get("/v1/loads")).json()["loads"]
        assert [(load["model"], load["dp_rank"]) for load in loads] == [("small", 0), ("big", 1)]
        assert len((await site.http.get("/v1/load?model=big")).json()["loads"]) == 1
        for path in ("/cache?model=", "/load?model=", "/health?model=", "/model_info?model="):
            assert (await site.http.get(f"{path}big")).status_code == 200
            refusal(await site.http.get(f"{path}huge"), 404, "model")
        await site.http.post("/flush_cache?model=big")
        assert (site.small.flushed, site.big.flushed) == (0, 1)
        await site.http.post("/flush_cache")
        assert (site.small.flushed, site.big.flushed) == (1, 2)


async def test_metrics_are_told_apart_by_model_name_in_families_of_one() -> None:
    async with two() as site:
        for name, count in (("small", 1), ("big", 2)):
            for _ in range(count):
                await site.http.post("/v1/completions", json={"prompt": "hi", "model": name})
        text = (await site.http.get("/metrics")).text
        for name, count in (("small", 1.0), ("big", 2.0)):
            assert f'branchpoint:request_success_total{{finished_reason="length",model_name="{name}"}} {count}' in text
            assert f'sglang:num_requests_total{{engine_type="unified",model_name="{name}"' in text
        heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(heads) == len(set(heads))


async def test_the_doctor_looks_at_one_of_several_models() -> None:
    async with two() as site:
        await site.http.post("/v1/completions", json={"prompt": "hi", "model": "big"})
        text = (await site.http.get("/metrics")).text
        ended = {name: read_look(text, name)["request_success_total"] for name in ("", "small", "big")}
        assert ended == {"": 1.0, "small": 0.0, "big": 1.0}
        assert "http_requests_open" in read_look(text, "big")


async def test_a_model_that_isnt_there_answers_503_and_the_other_serves() -> None:
    async with two(loaded=(True, False)) as site:
        assert (await site.http.post("/v1/completions", json={"prompt": "hi"})).status_code == 200
        refusal(await site.http.post("/v1/completions", json={"prompt": "hi", "model": "big"}), 503)
        answer = await site.http.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"status": "loading", "models": {"small": "ready", "big": "loading"}}
        assert (await site.http.get("/health?model=small")).json() == {"status": "ready"}
        assert (await site.http.get("/livez")).status_code == 200
        assert [card["id"] for card in (await site.http.get("/v1/models")).json()["data"]] == ["small", "s"]
        assert 'model_name="small"' in (await site.http.get("/metrics")).text
        site.models.find("big").state = State.DEAD
        assert (await site.http.get("/livez")).status_code == 503


async def test_live_requests_and_aborts_reach_all_models() -> None:
    async with two() as site:
        site.small.hold = site.big.hold = True
        body = {"prompt": "hi", "request_id": "one"}  # the same id, for different models
        asked = [asyncio.create_task(site.http.post("/v1/completions", json=body | {"model": name})) for name in ("small", "big")]
        await until(lambda: len(site.small.held) == len(site.big.held) == 1)
        listed = (await site.http.get("/branchpoint/requests")).json()["data"]
        assert {(one["id"], one["model"]) for one in listed} == {("one", "small"), ("one", "big")}
        assert (await site.http.post("/abort_request", json={"rid": "one"})).json() == {"aborted": 2}
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [499, 499]


async def test_programs_run_on_the_model_that_they_name() -> None:
    async with two() as site:
        nodes = [{"op": "text", "text": "a"}, {"op": "gen", "name": "x", "options": {"max_tokens": 2}}]
        program = {"version": 1, "program": "p", "parameters": [], "nodes": nodes}
        for name in ("big", "small"):
            answer = await site.http.post("/v1/programs", json={"program": program, "model": name})
            assert answer.status_code == 200 and answer.json()["model"] == name, answer.text
        assert len(site.small.calls) == len(site.big.calls) == 1


class Run:
    """A server of two models behind a real socket; `fail` is what loading the second raises."""

    def __init__(self, fail: BranchpointError | None = None, **options: object) -> None:
        self.told = list[str]()
        self.order = list[str]()
        self.engines = [engine(names[0]) for names in NAMES]
        self.listener = bind("127.0.0.1", 0)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.listener.getsockname()[1]}", timeout=60)

        def load(place: int) -> Loaded:
            self.order.append(NAMES[place][0])
            if place and fail is not None:
                raise fail
            return Loaded(self.engines[place], tokenizer(), NAMES[place], 8)

        loading = [Loading(lambda place=place: load(place), lambda: None, NAMES[place]) for place in (0, 1)]
        server = Server(ServerOptions(**options), loading, self.told.append)  # type: ignore[arg-type]
        self.task = asyncio.create_task(server.run(self.listener))

    async def ready(self) -> None:
        await until(lambda: any(line.startswith("Ready: small, big on http://127.0.0.1:") for line in self.told))

    def kill(self, place: int) -> None:
        one = self.engines[place]
        one.dead = EngineDead("The engine process ended: killed by signal 9.")
        assert one.watcher is not None
        threading.Thread(target=one.watcher, args=(one.dead,)).start()

    async def close(self) -> None:
        await self.http.aclose()
        self.listener.close()


async def test_two_models_load_in_turn_serve_and_drain_together() -> None:
    run = Run()
    await run.ready()
    assert run.order == ["small", "big"] and run.told[0] == "Loading 2 models…"
    for one in run.engines:
        one.hold = True
    body = {"prompt": "hi"}
    asked = [asyncio.create_task(run.http.post("/v1/completions", json=body | {"model": name})) for name in ("s", "big")]
    await until(lambda: all(one.held for one in run.engines))
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: any("Draining" in line for line in run.told))
    late = await run.http.post("/v1/completions", json=body | {"model": "big"})
    assert late.status_code == 503
    for one in run.engines:
        one.release()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]
    assert await asyncio.wait_for(run.task, 60) == 0 and all(one.closed for one in run.engines)
    await run.close()


async def test_an_engine_that_dies_starts_again_while_the_other_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchpoint.runtime.serving.life.BACKOFF_SECONDS", 0.3)
    run = Run()
    await run.ready()
    run.kill(1)
    await until(lambda: any("starts again" in line for line in run.told))
    answer = await run.http.get("/health")
    assert answer.status_code == 503 and answer.json()["models"] == {"small": "ready", "big": "loading"}
    assert (await run.http.post("/v1/completions", json={"prompt": "hi"})).status_code == 200
    await until(lambda: run.order == ["small", "big", "big"])
    while (await run.http.get("/health")).status_code != 200:
        await asyncio.sleep(0.005)
    assert (await run.http.post("/v1/completions", json={"prompt": "hi", "model": "big"})).status_code == 200
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(run.task, 60) == 0
    await run.close()


async def test_where_one_is_gone_for_good_the_other_drains_and_the_server_ends_with_1() -> None:
    run = Run(restarts=0)
    await run.ready()
    run.engines[0].hold = True
    asked = asyncio.create_task(run.http.post("/v1/completions", json={"prompt": "hi"}))
    await until(lambda: bool(run.engines[0].held))
    run.kill(1)
    await until(lambda: any("Draining" in line for line in run.told))
    run.engines[0].release()
    assert (await asked).status_code == 200
    assert await asyncio.wait_for(run.task, 60) == 1 and run.engines[0].closed
    await run.close()


async def test_a_second_model_that_cant_be_loaded_ends_the_first_and_the_server() -> None:
    run = Run(ModelError("No such file."))
    with pytest.raises(ModelError, match="No such file"):
        await asyncio.wait_for(run.task, 60)
    assert run.engines[0].closed
    await run.close()


def test_models_are_named_on_the_command_line_or_in_a_file_with_options_of_their_own(tmp_path: Path) -> None:
    base = EngineConfig(model="", kv_memory_gib=1.0, page_size=8)
    (one,) = served_models(["smollm2"], base, ServerOptions(model_names=("a", "b")))
    assert (one.config.model, one.config.served_name, one.names) == ("smollm2", "a", ("a", "b"))
    (plain,) = served_models(["smollm2"], base, ServerOptions())
    assert plain.names == () and plain.config.served_name is None
    several = served_models(["smollm2", "dummy:llama"], base, ServerOptions())
    assert [each.names for each in several] == [("smollm2",), ("dummy:llama",)]
    assert all(each.config.kv_memory_gib == 1.0 for each in several)
    file = tmp_path / "models.toml"
    file.write_text('[[model]]\nmodel = "smollm2"\nnames = ["x", "y"]\nkv_memory_gib = 0.5\n[[model]]\nmodel = "dummy:llama"\n')
    first, second = served_models([], base, ServerOptions(models_file=str(file)))
    assert (first.names, first.config.kv_memory_gib, first.config.page_size) == (("x", "y"), 0.5, 8)
    assert (second.names, second.config.kv_memory_gib, second.config.served_name) == (("dummy:llama",), 1.0, "dummy:llama")


@pytest.mark.parametrize(
    ("models", "file", "names", "told"),
    [
        ([], None, (), "Name a model"),
        (["smollm2", "smollm2"], None, (), "'smollm2' twice"),
        (["smollm2", "dummy:llama"], None, ("a",), "models file"),
        (["smollm2"], '[[model]]\nmodel = "smollm2"\n', (), "none can be named beside"),
        ([], "[[model]]\n", (), "needs a `model`"),
        ([], '[[model]]\nmodel = "smollm2"\npages = 3\n', (), "unknown field `pages`"),
        ([], '[[model]]\nmodel = "smollm2"\npage_size = 0\n', (), "page_size must be in"),
        ([], '[[model]]\nmodel = "smollm2"\n[[model]]\nmodel = "dummy:llama"\nnames = ["smollm2"]\n', (), "'smollm2' twice"),
        ([], "[[mod", (), "should hold"),
        ([], "", (), "should hold"),
    ],
)
def test_models_that_cant_be_served_are_refused_with_what_to_do(
    tmp_path: Path, models: list[str], file: str | None, names: tuple[str, ...], told: str
) -> None:
    path = tmp_path / "models.toml"
    if file is not None:
        path.write_text(file)
    options = ServerOptions(models_file=None if file is None else str(path), model_names=names)
    with pytest.raises(InvalidRequest, match=told):
        served_models(models, EngineConfig(model=""), options)


def test_memory_must_be_divided_and_suffice_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = EngineConfig(model="dummy:llama", served_name="one", kv_memory_gib=1.0, device="cpu")
    other = msgspec.structs.replace(one, served_name="other", kv_memory_gib=2.5)
    monkeypatch.setattr(division, "available_memory", lambda device: 4 * division.GIB)
    check_division([one, other])
    with pytest.raises(InvalidRequest, match="for other alone") as undivided:
        check_division([one, msgspec.structs.replace(other, kv_memory_gib=None)])
    assert undivided.value.param == "kv_memory_gib"
    monkeypatch.setattr(division, "available_memory", lambda device: 3 * division.GIB)
    with pytest.raises(
        CapacityError, match=r"at least 3\.\d\d GiB together, but 3\.00 GiB are free \(one .* 1\.00 GiB of KV; other"
    ):
        check_division([one, other])
    pages = msgspec.structs.replace(other, kv_memory_gib=None, num_pages=64)
    check_division([one, pages])
