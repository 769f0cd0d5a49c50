"""LoRA adapters over HTTP: asked for by name on every route, loaded by those who may, from where the operator allows."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from branchpoint.lang.serve import programs_endpoint
from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import EngineDead, InvalidRequest
from branchpoint.runtime.process import EngineThread
from branchpoint.runtime.serving.adapters import ServedAdapters
from branchpoint.runtime.serving.app import build_app
from branchpoint.runtime.serving.gateway import Loaded
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.served import served_models
from branchpoint.runtime.weights.dummy import dummy_config
from tests.runtime.adapters import write_adapter
from tests.runtime.serving_fake import FakeEngine, failed
from tests.runtime.serving_site import Site, open_site, refusal, tokenizer
from tests.server.test_models import BODIES
from tests.server.waiting import until

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with open_site(adapters=("sql", "chat"), more=[programs_endpoint()]) as ready:
        yield ready


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_names_an_adapter_as_its_model(path: str, site: Site) -> None:
    for model, adapter, told in (
        ("sql", "sql", "sql"),
        ("alias:chat", "chat", "chat"),
        ("alias", "", "fake"),
        (None, "", "fake"),
    ):
        answer = await site.post(path, **BODIES[path], **({} if model is None else {"model": model}))
        assert answer.status_code == 200, answer.text
        assert site.engine.calls[-1].adapter == adapter
        assert answer.json().get("model", told) == told
    answer = await site.post(f"{path}?model=alias:sql", **BODIES[path])
    assert answer.status_code == 200 and site.engine.calls[-1].adapter == "sql" and answer.json().get("model", "sql") == "sql"
    for unknown in ("nobody", "fake:nobody", "nobody:sql", "sql:chat", ":sql"):
        answer = await site.post(path, **BODIES[path], model=unknown)
        assert answer.status_code == 404 and "sql, chat" in answer.text
    assert len(site.engine.calls) == 5


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
async def test_sglangs_lora_path_names_one_too(path: str, site: Site) -> None:
    for fields in ({"lora_path": "sql"}, {"lora_path": "sql", "model": "fake"}, {"lora_path": "sql", "model": "sql"}):
        assert (await site.post(path, **BODIES[path], **fields)).status_code == 200
        assert site.engine.calls[-1].adapter == "sql"
    assert (await site.post(path, **BODIES[path], lora_path=None)).status_code == 200 and not site.engine.calls[-1].adapter
    refusal(await site.post(path, **BODIES[path], lora_path="fake"), 404, "lora_path")
    refusal(await site.post(path, **BODIES[path], lora_path="sql", model="chat"), 400, "lora_path")
    refusal(await site.post(path, **BODIES[path], lora_path=["sql"]), 400, "lora_path")
    assert len(site.engine.calls) == 4


async def test_every_call_of_a_program_has_the_adapter_of_its_request(site: Site) -> None:
    import branchpoint as bp

    @bp.function
    def twice(s: bp.State) -> None:
        s += "a" + bp.gen("x", max_tokens=2) + "b" + bp.select("y", choices=["c", "d"])

    body = {"program": json.loads(twice.compile().to_json()), "model": "sql"}
    answer = await site.post("/v1/programs", **body)
    assert answer.status_code == 200 and answer.json()["model"] == "sql"
    assert {call.adapter for call in site.engine.calls} == {"sql"} and len(site.engine.calls) == 2
    assert (await site.post("/v1/programs", **(body | {"model": "fake"}))).status_code == 200
    assert not site.engine.calls[-1].adapter


async def test_models_list_adapters_with_their_parent(site: Site) -> None:
    cards = {card["id"]: card for card in (await site.http.get("/v1/models")).json()["data"]}
    assert {name: card["parent"] for name, card in cards.items()} == {"fake": None, "alias": None, "sql": "fake", "chat": "fake"}
    assert (await site.http.get("/v1/models/chat")).json() == cards["chat"]
    assert (await site.http.get("/v1/models/fake:chat")).json() == cards["chat"]
    refusal(await site.http.get("/v1/models/nobody"), 404, "model")
    assert (await site.post("/tokenize", prompt="a", model="sql")).status_code == 200


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder to load from; beside it one that isn't, with links from the one to the other."""
    root, outside = tmp_path / "allowed", tmp_path / "outside"
    for folder in (root / "good", outside / "bad"):
        write_adapter(folder, dummy_config("llama"))
    (root / "link").symlink_to(outside / "bad")
    (root / "inner").symlink_to(root / "good")
    (root / "round").symlink_to(root / "round")
    return root


async def test_adapters_come_from_listed_folders_alone_wherever_links_lead(root: Path) -> None:
    async with open_site(lora_dirs=(str(root.parent / "allowed"),)) as site:
        outside = str(root.parent / "outside" / "bad")
        for place in (outside, "/etc", "../outside/bad", "good/../../outside/bad", "link", "/", "..", "/nowhere"):
            refusal(await site.post(LOAD, lora_name="x", lora_path=place), 403, "lora_path")
        for place in ("nothing", str(root / "good" / "deeper")):
            refusal(await site.post(LOAD, lora_name="x", lora_path=place), 404, "lora_path")
        for place in ("a\0b", "x" * 5000):
            refusal(await site.post(LOAD, lora_name="x", lora_path=place), 400, "lora_path")
        assert (await site.post(LOAD, lora_name="x", lora_path="round")).status_code in (400, 404)
        assert not site.engine.adapters
        for name, place in (("a", "good"), ("b", str(root / "good")), ("c", "inner"), ("d", "./good/../good")):
            answer = await site.post(LOAD, lora_name=name, lora_path=place)
            assert answer.status_code == 200 and answer.text == f"Success: LoRA adapter '{name}' added successfully."
            assert site.engine.adapters[name] == str(root / "good") and site.engine.within == (str(root),)


async def test_without_a_listed_folder_nothing_is_loaded_and_what_was_named_at_the_start_can_go(site: Site, root: Path) -> None:
    told = refusal(await site.post(LOAD, lora_name="x", lora_path=str(root / "good")), 403, "lora_path")
    assert "--lora-dirs" in told
    assert (await site.post(UNLOAD, lora_name="sql")).text == "Success: LoRA adapter 'sql' removed successfully."
    refusal(await site.post("/v1/completions", prompt="a", model="sql"), 404, "model")
    refusal(await site.post(UNLOAD, lora_name="sql"), 404, "lora_name")


async def test_names_are_given_once_and_what_the_engine_refuses_is_told(root: Path) -> None:
    async with open_site(adapters=("sql",), lora_dirs=(str(root),)) as site:
        for name in ("fake", "alias", "alias:sql", "", "two\nlines", "x" * 300):
            refusal(await site.post(LOAD, lora_name=name, lora_path="good"), 400, "lora_name")
        refusal(await site.post(LOAD, lora_name="sql", lora_path="good"), 400, "lora_name")
        assert (await site.post(LOAD, lora_name="sql", lora_path="good", load_inplace=True)).status_code == 200
        assert site.engine.adapters == {"sql": str(root / "good")}
        site.engine.unreadable = "r must be a whole number in [1, max_lora_rank=64], got 65."
        assert "max_lora_rank=64" in refusal(await site.post(LOAD, lora_name="y", lora_path="good"), 400, "lora_path")
        refusal(await site.post("/v1/completions", prompt="a", model="y"), 404, "model")
        for path in (LOAD, UNLOAD):
            refusal(await site.post(path), 400, "lora_name")
            refusal(
                await site.post(path, lora_name="y", lora_path="good", lora_rank=3),
                400,
                "lora_rank" if path == LOAD else "lora_path",
            )


async def test_one_name_that_is_asked_for_two_models_at_once_is_given_once(root: Path) -> None:
    models, engines = Models(ServerOptions(lora_dirs=(str(root),)), (("small",), ("big",))), (FakeEngine(), FakeEngine())
    for gateway, engine in zip(models, engines, strict=True):
        gateway.attach(Loaded(engine, tokenizer(), gateway.names, 8))
    reading, load = Future[None](), engines[0].load_adapter

    def slow(name: str, folder: str, **options: object) -> "Future[None]":
        load(name, folder)
        return reading

    engines[0].load_adapter = slow  # type: ignore[method-assign]
    transport = httpx.ASGITransport(build_app(models), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:

        async def ask(model: str) -> httpx.Response:
            return await http.post(LOAD, params={"model": model}, json={"lora_name": "x", "lora_path": "good"})

        first = asyncio.create_task(ask("small"))
        await until(lambda: "x" in engines[0].adapters)
        second = asyncio.create_task(ask("big"))
        assert (await http.get("/v1/models")).status_code == 200, "reading an adapter holds up nobody"
        reading.set_result(None)
        assert (await first).status_code == 200
        refusal(await second, 400, "lora_name")
    assert not engines[1].adapters
    models.shared.close()


async def test_sglangs_routes_answer_in_its_shape(root: Path) -> None:
    async with open_site(adapters=("sql",), lora_dirs=(str(root),)) as site:
        answer = await site.post("/load_lora_adapter", lora_name="x", lora_path="good", pinned=False)
        assert answer.json() == {"success": True, "error_message": "", "loaded_adapters": ["sql", "x"]}
        assert (await site.post("/unload_lora_adapter", lora_name="sql")).json()["loaded_adapters"] == ["x"]
        refusal(await site.post("/load_lora_adapter", lora_name="y", lora_path="good", pinned=True), 400, "pinned")


async def test_only_keys_that_may_manage_the_server_change_its_adapters(root: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "one"\nkey = "k1"\n[[key]]\nname = "boss"\nkey = "kb"\nadmin = true\n')
    keys.chmod(0o600)
    body = {"lora_name": "x", "lora_path": "good"}
    async with open_site(lora_dirs=(str(root),), api_key_file=str(keys)) as site:
        for path in (LOAD, UNLOAD, LOAD.removeprefix("/v1"), UNLOAD.removeprefix("/v1")):
            assert (await site.http.post(path, json=body)).status_code == 401
            refusal(await site.http.post(path, json=body, headers={"Authorization": "Bearer k1"}), 403)
        assert (await site.http.post(LOAD, json=body, headers={"Authorization": "Bearer kb"})).status_code == 200
        asked = {"prompt": "a", "model": "x"}
        assert (await site.http.post("/v1/completions", json=asked, headers={"Authorization": "Bearer k1"})).status_code == 200
        call = site.engine.calls[-1]
        assert (call.adapter, call.namespace) == ("x", "one\x1f")


async def test_before_the_model_is_loaded_everything_waits() -> None:
    async with open_site(loaded=False) as site:
        for path, body in (
            (LOAD, {"lora_name": "x", "lora_path": "y"}),
            (UNLOAD, {"lora_name": "x"}),
            ("/generate", {"text": "a", "lora_path": ""}),
        ):
            refusal(await site.post(path, **body), 503)


async def test_an_engine_that_starts_again_serves_the_adapters_that_the_last_one_did(root: Path) -> None:
    async with open_site(adapters=("kept", "gone", "spoilt"), lora_dirs=(str(root),)) as site:
        begun = dict(site.engine.adapters)
        await site.post(UNLOAD, lora_name="gone")
        await site.post(LOAD, lora_name="spoilt", lora_path="good", load_inplace=True)
        for name in ("new", "lost"):
            await site.post(LOAD, lora_name=name, lora_path="good")
        for dead in (True, False):  # one that dies meanwhile says nothing of the adapters
            again = FakeEngine()
            again.adapters = dict(begun)
            if dead:
                again.load_adapter = lambda name, folder, **_: failed(EngineDead("gone"))  # type: ignore[method-assign]
                with pytest.raises(EngineDead):
                    await site.gateway.adapters.restore(again, begun)
        refuse = again.load_adapter
        again.load_adapter = lambda name, folder, **_: refuse(  # type: ignore[method-assign]
            "kept" if name in ("lost", "spoilt") else name, folder, replace=name == "new"
        )
        await site.gateway.adapters.restore(again, begun)
        site.gateway.attach(Loaded(again, tokenizer(), ("fake",), 8, begun))
        assert again.adapters == {"kept": "/begun/kept", "new": str(root / "good")}
        assert list(site.gateway.adapters) == ["kept", "new"]


async def test_a_models_name_may_hold_a_colon_as_ollamas_do() -> None:
    served = ServedAdapters()
    served.attach(FakeEngine(), {"sql": "/a", "b:c": "/b"})
    for model in ("sql", "llama3:8b:sql", "llama3:sql"):
        assert served.named(model, ("llama3", "llama3:8b")) == "sql"
    assert served.named("llama3:b:c", ("llama3",)) == "b:c"
    assert served.named("llama3:8b", ("llama3:8b",)) == served.named("llama3:", ("llama3",)) == ""


def test_names_of_models_and_adapters_are_each_given_once(root: Path) -> None:
    base = EngineConfig(model="", adapters={"a": str(root / "good")})
    (served,) = served_models(["dummy:llama"], base, ServerOptions(lora_dirs=(str(root),)))
    assert served.config.enable_lora and served.config.adapters
    with pytest.raises(InvalidRequest, match="names of its own, got 'a' twice"):
        served_models(["dummy:llama"], base, ServerOptions(model_names=("a",)))
    with pytest.raises(InvalidRequest, match="must be folders that are there"):
        ServerOptions(lora_dirs=(str(root / "nothing"),))


@asynccontextmanager
async def real(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP side around an engine with small random weights, which takes adapters."""
    loaded = build_engine(EngineConfig(model="dummy:llama", num_pages=64, threads=1, enable_lora=True, max_loras=4))
    models = Models(ServerOptions(lora_dirs=(str(root),)))
    with EngineThread(loaded) as engine:
        models.first.attach(Loaded(engine, loaded.tokenizer, ("base",), loaded.tokenizer.vocabulary.longest))
        transport = httpx.ASGITransport(build_app(models), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            yield http
        models.shared.close()


async def test_a_real_engine_serves_loads_and_unloads_while_requests_run(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        write_adapter(tmp_path / name, dummy_config("llama"), seed=seed)
    async with real(tmp_path) as http:

        async def say(model: str, tokens: int = 8) -> httpx.Response:
            body = {"model": model, "prompt": "Say: ", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            return await http.post("/v1/completions", json=body)

        plain = (await say("base")).json()["choices"][0]["text"]
        for name in "ab":
            assert (await http.post(LOAD, json={"lora_name": name, "lora_path": name})).status_code == 200
        texts = [answer.json()["choices"][0]["text"] for answer in await asyncio.gather(*map(say, ("base", "a", "b")))]
        assert texts[0] == plain and len(set(texts)) == 3
        running = asyncio.create_task(say("a", 200))
        while b'running_lora_adapters="a"' not in (await http.get("/metrics")).content:
            assert not running.done()
        assert (await http.post(UNLOAD, json={"lora_name": "a"})).status_code == 200
        refusal(await say("a"), 404, "model")
        ended = (await running).json()
        assert ended["model"] == "a" and ended["choices"][0]["text"].startswith(texts[1])
        assert ended["usage"]["completion_tokens"] == 200
        answer = await http.post(LOAD, json={"lora_name": "a", "lora_path": "."})
        assert "adapter_config.json can't be read" in refusal(answer, 400, "lora_path")
        (tmp_path / "leak").mkdir()
        (tmp_path / "leak" / "adapter_config.json").symlink_to("/etc/passwd")
        answer = await http.post(LOAD, json={"lora_name": "a", "lora_path": "leak"})
        assert "leads out of the folders" in refusal(answer, 400, "lora_path")
        await http.post(LOAD, json={"lora_name": "a", "lora_path": "b"})
        again = (await say("a")).json()
        assert again["choices"][0]["text"] == texts[2] and again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        lines = [line for line in (await http.get("/metrics")).text.splitlines() if line.startswith("vllm:lora_requests_info{")]
        assert len(lines) == 1 and 'max_lora="4"' in lines[0] and 'running_lora_adapters=""' in lines[0]
