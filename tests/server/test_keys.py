"""API keys: from options and files, compared by digest, with limits, namespaces and rights of their own."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from branchpoint.radix import BlockPool, PrefixKey, RadixTree, find_lost_reuse
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.keys import ANYONE, Caller, key_ring
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.quota import KeyLimits, Quota
from branchpoint.runtime.stats import CacheDump
from tests.runtime.serving_fake import done
from tests.runtime.serving_site import BASE, Site, open_site, refusal
from tests.server.waiting import until

FILE = """
[[key]]
name = "one"
key = "key-of-one"
concurrency = 1
tokens_per_minute = 1000
cache = "shared"

[[key]]
name = "two"
sha256 = "{digest}"
requests_per_minute = 3

[[key]]
name = "boss"
key = "key-of-boss"
admin = true
"""
ONE, TWO, BOSS = ({"authorization": f"Bearer key-of-{name}"} for name in ("one", "two", "boss"))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(FILE.format(digest=hashlib.sha256(b"key-of-two").hexdigest()))
    path.chmod(0o600)
    return path


@asynccontextmanager
async def keyed(path: Path, **options: object) -> AsyncIterator[Site]:
    async with open_site(api_key_file=str(path), **options) as site:
        yield site


async def test_every_route_but_health_and_metrics_asks_for_a_key(key_file: Path) -> None:
    async with keyed(key_file) as site:
        paths = [path for path, methods in (await site.http.get("/openapi.json", headers=BOSS)).json()["paths"].items()]
        assert len(paths) > 20
        for path in paths:
            for method in ("GET", "POST"):
                answer = await site.http.request(method, path)
                closed = path not in ("/health", "/health_generate", "/livez", "/readyz", "/ready", "/ping", "/metrics")
                assert (answer.status_code == 401) == closed, (method, path)
        for spelling in ("//generate", "/GENERATE", "/health/../generate", "/metrics/", "/health/"):
            assert (await site.http.post(f"http://server{spelling}", json={"text": "hi"})).status_code == 401


async def test_metrics_may_be_guarded_too(key_file: Path) -> None:
    async with keyed(key_file, guard_metrics=True) as site:
        refusal(await site.http.get("/metrics"), 401)
        assert (await site.http.get("/metrics", headers=ONE)).status_code == 200
        assert (await site.http.get("/health")).status_code == 200


async def test_each_key_has_a_cache_namespace_of_its_own_whatever_salt_it_sends(key_file: Path) -> None:
    async with keyed(key_file) as site:
        spaces = set()
        for headers in (ONE, TWO):
            for salt in (None, "a"):
                answer = await site.http.post("/generate", json={"text": "hi", "cache_salt": salt}, headers=headers)
                assert answer.status_code == 200
                spaces.add(site.engine.calls[-1].namespace)
        assert len(spaces) == 4 and all("\x1f" in space for space in spaces)
        assert any(space.startswith("shared") for space in spaces)
        forged = await site.http.post("/generate", json={"text": "hi", "cache_salt": "two\x1f"}, headers=ONE)
        refusal(forged, 400, "cache_salt")


async def test_a_key_sees_what_it_has_cached_itself_and_an_admin_sees_all(key_file: Path) -> None:
    pool = BlockPool(512, 4)
    tree = RadixTree(pool)
    async with keyed(key_file) as site:
        for number, (headers, salt) in enumerate(((ONE, "a"), (TWO, None), (TWO, "b"), (BOSS, None))):
            assert (
                await site.http.post("/generate", json={"text": "hi", "cache_salt": salt}, headers=headers)
            ).status_code == 200
            for day in range(2):
                key = PrefixKey(site.engine.calls[-1].namespace, [number, day, *range(100, 300)])
                tree.insert(key, pool.allocate(51))
        whole = CacheDump(tree.dump(), tuple(find_lost_reuse(tree.recent(10))))
        site.engine.dump_cache = lambda: done(whole)  # type: ignore[method-assign]
        found = {}
        for name, headers in (("1", ONE), ("2", TWO), ("b", BOSS)):
            found[name] = (await site.http.get("/cache", headers=headers)).json()
        assert [{node["namespace"] for node in found[name]["nodes"]} for name in "12"] == [
            {"shared\x1fa"},
            {"two\x1f", "two\x1fb"},
        ]
        assert len({node["namespace"] for node in found["b"]["nodes"]}) == 4 == len(found["b"]["lost_reuse"])
        assert found["b"]["num_pages"] == tree.num_pages and len(found["1"]["lost_reuse"]) == 1
        one = found["2"]
        assert [node["id"] for node in one["nodes"]] == list(range(len(one["nodes"]))), "numbers tell nothing of others"
        assert one["num_tokens"] == sum(node["num_tokens"] for node in one["nodes"]) == tree.num_tokens // 2
        text = (await site.http.get("/cache?format=text", headers=ONE)).text
        assert "shared" in text and "two" not in text


async def test_nobody_ends_the_program_of_another_key(key_file: Path) -> None:
    async with keyed(key_file) as site:
        body = {"text": "hi", "hints": {"program": "p", "ended": ["q"]}}
        names = []
        for headers, salt in ((ONE, {}), (TWO, {}), (ONE, {"cache_salt": "s"})):
            assert (await site.http.post("/generate", json=body | salt, headers=headers)).status_code == 200
            names.append((site.engine.calls[-1].namespace, "p"))
            answer = await site.http.post("/branchpoint/end_program", json={"program": "p"} | salt, headers=headers)
            assert answer.status_code == 200 and answer.json() == {"program": "p"}
        assert site.engine.ended == names and len(set(names)) == 3
        refusal(await site.http.post("/branchpoint/end_program", json={"programme": "p"}, headers=ONE), 400, "programme")


async def test_a_keys_requests_a_minute_end_in_429_with_retry_after(key_file: Path) -> None:
    async with keyed(key_file) as site:
        for _ in range(3):
            assert (await site.http.post("/tokenize", json={"prompt": "a"}, headers=TWO)).status_code == 200
        answer = await site.http.post("/tokenize", json={"prompt": "a"}, headers=TWO)
        refusal(answer, 429)
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert (await site.http.post("/tokenize", json={"prompt": "a"}, headers=BOSS)).status_code == 200


async def test_a_keys_requests_at_once_are_limited_and_given_back(key_file: Path) -> None:
    import asyncio

    async with keyed(key_file) as site:
        site.engine.hold = True
        first = asyncio.create_task(site.http.post("/generate", json={"text": "hi"}, headers=ONE))
        await until(lambda: site.gateway.num_open == 1)
        refusal(await site.http.post("/generate", json={"text": "hi"}, headers=ONE), 429)
        site.engine.release()
        assert (await first).status_code == 200
        assert (await site.http.post("/generate", json={"text": "hi"}, headers=ONE)).status_code == 200


async def test_only_admin_keys_manage_and_nobody_else_ends_anothers_request(key_file: Path) -> None:
    import asyncio

    async with keyed(key_file) as site:
        refusal(await site.http.post("/flush_cache", headers=ONE), 403)
        assert (await site.http.post("/flush_cache", headers=BOSS)).status_code == 200
        site.engine.hold = True
        running = asyncio.create_task(site.http.post("/generate", json={"text": "hi", "rid": "mine"}, headers=ONE))
        await until(lambda: site.gateway.num_open == 1)
        for body in ({"rid": "mine"}, {"abort_all": True}):
            assert (await site.http.post("/abort_request", json=body, headers=TWO)).json() == {"aborted": 0}
        same_id = asyncio.create_task(site.http.post("/generate", json={"text": "hi", "rid": "mine"}, headers=BOSS))
        await until(lambda: site.gateway.num_open == 2)
        assert (await site.http.post("/abort_request", json={"rid": "mine"}, headers=ONE)).json() == {"aborted": 1}
        assert (await running).status_code == 499 and not same_id.done()
        assert (await site.http.post("/abort_request", json={"abort_all": True}, headers=BOSS)).json() == {"aborted": 1}
        assert (await same_id).status_code == 499


def test_where_no_key_is_an_admin_all_are_and_a_single_key_shares_with_nobody() -> None:
    (caller,) = (key_ring(("a",), None).find(b"a"),)
    assert caller is not None and caller.admin and caller.space("salt") == "salt"
    two = key_ring(("a", "b"), None)
    assert two.find(b"a") != two.find(b"b") and two.find(b"c") is None and two.find(b"") is None
    assert not key_ring((), None) and ANYONE.space("x") == "x"
    assert Caller("n", "n").space("") == "n\x1f"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nonsense", "TOML|should hold"),
        ("[[key]]\nname = 'a'\n", "exactly one of key and sha256"),
        ("[[key]]\nname = 'a'\nkey = ' '\n", "is empty"),
        ("[[key]]\nname = 'a'\nsha256 = 'xy'\n", "hex digits"),
        ("[[key]]\nname = ''\nkey = 'x'\n", "name of 1"),
        ('[[key]]\nname = "a"\nkey = "x"\ncache = "b\\u001fc"\n', "cache of printable"),
        ("[[key]]\nname = 'a'\nkey = 'x'\nconcurrency = 0\n", "at least 1"),
        ("[[key]]\nname = 'a'\nkey = 'x'\nlimit = 3\n", "limit"),
        ("[[key]]\nname = 'a'\nkey = 'x'\n[[key]]\nname = 'a'\nkey = 'y'\n", "twice"),
        ("[[key]]\nname = 'a'\nkey = 'x'\n[[key]]\nname = 'b'\nkey = 'x'\n", "twice"),
        ("key = []", "holds no key"),
    ],
)
def test_a_key_file_that_cant_be_meant_is_refused_without_telling_a_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=told):
        key_ring((), str(path))
    with pytest.raises(InvalidRequest, match="can't be read"):
        key_ring((), str(tmp_path / "none.toml"))


def test_a_key_file_that_others_can_read_is_warned_of(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_ring((), str(key_file))
    assert not caplog.records
    key_file.chmod(0o644)
    key_ring((), str(key_file))
    assert "chmod 600" in caplog.text and "key-of" not in caplog.text


def test_buckets_fill_steadily_and_a_debt_must_be_paid_back() -> None:
    now = 0.0
    quota = Quota(KeyLimits(tokens_per_minute=60), clock=lambda: now)
    quota.enter(50)
    quota.leave(100)  # 90 more than there were
    with pytest.raises(Exception, match="60 tokens a minute"):
        quota.enter(1)
    now = 91.0
    quota.enter(1)
    with pytest.raises(Exception, match="try again in 1 s"):
        quota.enter(1)


@pytest.mark.parametrize("path", list(BASE))
async def test_limits_of_the_server_are_named(path: str) -> None:
    async with open_site(max_n=2, max_logprobs=1, max_schema_bytes=100, max_prompt_tokens=40) as site:
        native = path == "/generate"
        body = BASE[path]

        def put(**fields: object) -> dict[str, object]:
            return body | ({"sampling_params": fields} if native else fields)

        refusal(await site.post(path, **put(n=3)), 400, "sampling_params.n" if native else "n")
        assert (await site.post(path, **put(n=2))).status_code == 200
        refusal(await site.post(path, **put(regex="a" * 101)), 400, "sampling_params.regex" if native else "regex")
        assert (await site.post(path, **put(regex="a" * 100))).status_code == 200
        if path == "/v1/completions":
            refusal(await site.post(path, **put(logprobs=2)), 400, "logprobs")
            assert "at most 40" in refusal(await site.post(path, prompt="x" * 41), 400, "prompt")


def test_options_that_cant_be_meant_are_refused() -> None:
    for options, param in (
        ({"max_n": 0}, "max_n"),
        ({"max_n": 10**6}, "max_n"),
        ({"max_logprobs": 21}, "max_logprobs"),
        ({"stall_seconds": 0}, "stall_seconds"),
        ({"max_queued_tokens": 0}, "max_queued_tokens"),
        ({"ssl_keyfile": "x"}, "ssl_certfile"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            ServerOptions(**options)  # type: ignore[arg-type]
        assert caught.value.param == param


async def test_a_key_sees_its_own_live_requests_an_admin_all_and_nobody_a_text(key_file: Path) -> None:
    import asyncio

    async with keyed(key_file) as site:
        site.engine.hold = True
        asked = [
            asyncio.create_task(site.http.post("/v1/completions", json={"prompt": "secret", "request_id": name}, headers=key))
            for name, key in (("a", ONE), ("b", TWO))
        ]
        await until(lambda: len(site.engine.held) == 2)
        seen = {}
        for name, key in (("one", ONE), ("two", TWO), ("boss", BOSS)):
            answer = await site.http.get("/branchpoint/requests", headers=key)
            assert "secret" not in answer.text
            seen[name] = {(one["id"], one["key"]) for one in answer.json()["data"]}
        assert seen == {"one": {("a", "one")}, "two": {("b", "two")}, "boss": {("a", "one"), ("b", "two")}}
        (one,) = (await site.http.get("/branchpoint/requests", headers=ONE)).json()["data"]
        told = {"path": "/v1/completions", "model": "fake", "stream": False, "phase": "waiting", "calls": 1, "output_tokens": 0}
        assert {name: one[name] for name in told} == told and one["prompt_tokens"] > 0 and one["seconds"] >= 0
        site.engine.release()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]
        assert (await site.http.get("/branchpoint/requests", headers=BOSS)).json()["total"] == 0
