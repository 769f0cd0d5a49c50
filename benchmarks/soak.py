"""A server under mixed work for a long time: clients that go, bodies that are wrong, an engine that is killed.

`python -m benchmarks.soak [--seconds 1800] [--clients 64] [--model dummy:llama]`. Holds: each request ends in exactly one answer,
no page and no call is left, memory grows by less than 2 % over the second half. Exit status 1 where one of these doesn't hold.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from benchmarks.server_process import ServerProcess, serving

MALFORMED = 0.02
LEAVES = 0.1
GROWTH = 1.02
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "n": {"type": "integer"}}, "required": ["a", "n"]}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
PROGRAM = {
    "version": 1,
    "program": "soak",
    "parameters": ["text"],
    "nodes": [
        {"op": "argument", "name": "text"},
        {"op": "gen", "name": "x", "options": {"max_tokens": 8}},
        {"op": "text", "text": " so "},
        {"op": "gen", "name": "y", "options": {"max_tokens": 8}},
    ],
}
WRONG: tuple[bytes, ...] = (
    b"{",
    b"[]",
    b'{"prompt": 7}',
    b'{"prompt": "a", "n": 100000}',
    b'{"prompt": "a", "regex": "("}',
    b"\xff\xfe",
)


@dataclass
class Told:
    """What the clients have seen."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    down: bool = False

    def fault(self, what: str) -> None:
        self.counts["fault"] += 1
        self.faults.append(what[:300])


def request(chance: random.Random) -> tuple[str, dict[str, object]]:
    """One of many kinds."""
    text = "".join(chance.choices("abcdefgh ", k=chance.randint(1, 200)))
    messages = [{"role": "user", "content": text}]
    limit = chance.randint(1, 64)
    enough = max(limit, 32)  # a limit that holds no complete output of its constraint is refused
    kinds: list[tuple[str, dict[str, object]]] = [
        ("/v1/completions", {"prompt": text, "max_tokens": limit, "stream": True, "n": chance.randint(1, 3)}),
        ("/v1/completions", {"prompt": [text, "b"], "max_tokens": limit, "logprobs": 2, "echo": True}),
        ("/v1/completions", {"prompt": text, "max_tokens": enough, "structured_outputs": {"json": SCHEMA}}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": limit, "stream": True}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": enough, "tools": [TOOL]}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": enough, "tools": [TOOL], "tool_choice": "required"}),
        ("/v1/responses", {"input": text, "max_output_tokens": enough, "stream": True}),
        ("/v1/messages", {"messages": messages, "max_tokens": limit}),
        ("/generate", {"text": text, "sampling_params": {"max_new_tokens": enough, "regex": "[a-z]{3,9}"}}),
        ("/v1/score", {"text_1": text, "text_2": ["a", "bc"]}),
        ("/v1/embeddings", {"input": [text, "x"]}),
        ("/v1/programs", {"program": PROGRAM, "arguments": {"text": text}, "stream": chance.random() < 0.5}),
    ]
    return chance.choice(kinds)


async def client(url: str, told: Told, until: float, seed: int) -> None:
    """Ask, one request after the other, and hold each answer against what it must be."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        while time.monotonic() < until:
            path, body = request(chance)
            try:
                if chance.random() < MALFORMED:
                    await malformed(http, told, chance.choice(WRONG))
                elif chance.random() < LEAVES:
                    await leaves(http, path, body, chance)
                    told.counts["left"] += 1
                else:
                    await asks(http, told, path, body)
            except httpx.HTTPError as error:
                told.fault(f"{path}: {type(error).__name__}: {error}")
            if told.down:
                await asyncio.sleep(0.5)


async def malformed(http: httpx.AsyncClient, told: Told, body: bytes) -> None:
    answer = await http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    told.counts["malformed"] += 1
    if answer.status_code not in (400, 503):
        told.fault(f"{body!r} was answered {answer.status_code}")


async def leaves(http: httpx.AsyncClient, path: str, body: dict[str, object], chance: random.Random) -> None:
    try:
        async with asyncio.timeout(chance.random()), http.stream("POST", path, json=body) as answer:
            async for _ in answer.aiter_raw():
                if chance.random() < 0.3:
                    return
    except TimeoutError:
        return


async def asks(http: httpx.AsyncClient, told: Told, path: str, body: dict[str, object]) -> None:
    answer = await http.post(path, json=body)
    told.counts[f"status {answer.status_code}"] += 1
    if answer.status_code in (429, 500, 503):
        if answer.status_code == 500 and not told.down:
            told.fault(f"{path}: 500 though the engine lives: {answer.text}")
    elif answer.status_code != 200:
        told.fault(f"{path}: {answer.status_code}: {answer.text}")
    elif body.get("stream"):
        check_stream(told, path, body, answer.text)
    else:
        json.loads(answer.text)


def check_stream(told: Told, path: str, body: dict[str, object], text: str) -> None:
    """A stream ends once: with its finish reasons, or with an error while the engine is down."""
    if path == "/v1/programs":
        good = text.count("event: done\n") + text.count("event: error\n") == 1
    elif path == "/v1/responses":
        ends = sum(text.count(f"event: response.{word}\n") for word in ("completed", "incomplete", "failed")) + text.count(
            "event: error\n"
        )
        good = ends == 1
    else:
        reasons = sum(1 for line in text.split("\n\n") for choice in _choices(line) if choice.get("finish_reason"))
        failed = '"error":{' in text
        good = text.endswith("data: [DONE]\n\n") and text.count("[DONE]") == 1 and (reasons == body.get("n", 1) or failed)
        if failed and not told.down:
            told.fault(f"{path}: an error in a stream though the engine lives: {text[-300:]}")
    if not good:
        told.fault(f"{path}: a stream that doesn't end once: {text[-300:]}")


def _choices(line: str) -> list[dict[str, object]]:
    if not line.startswith("data: {"):
        return []
    found: list[dict[str, object]] = json.loads(line[6:]).get("choices") or []
    return found


async def kill_engine(server: ServerProcess, told: Told, url: str) -> None:
    """Kill the engine, and wait until another serves."""
    told.down = True
    sizes = {pid: _resident(pid) for pid in server.children()}
    os.kill(max(sizes, key=lambda pid: sizes[pid]), signal.SIGKILL)
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        await asyncio.sleep(1)
        while (await http.get("/health")).status_code != 200:
            await asyncio.sleep(0.2)
    await asyncio.sleep(3)  # what was answered meanwhile has been read
    told.down = False
    told.counts["engines killed"] += 1


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123  # one read of a kernel file
            return int(file.read().split()[1])
    except OSError:
        return 0


async def soak(server: ServerProcess, seconds: float, clients: int) -> Told:
    told, until = Told(), time.monotonic() + seconds
    asking = [asyncio.create_task(client(server.url, told, until, seed)) for seed in range(clients)]
    await asyncio.sleep(seconds / 4)
    await kill_engine(server, told, server.url)
    await asyncio.sleep(max(0.0, until - seconds / 2 - time.monotonic()))
    first = max([server.memory() for _ in range(5) if not await asyncio.sleep(1)], key=lambda sizes: sum(sizes.values()))
    await asyncio.gather(*asking)
    await asyncio.sleep(2)
    last = server.memory()
    before, after = sum(first.values()), sum(last.values())
    told.counts["MiB at half time"], told.counts["MiB at the end"] = before >> 20, after >> 20
    if after > before * GROWTH:
        grown = ", ".join(f"{first.get(pid, 0) >> 20} to {size >> 20}" for pid, size in last.items())
        told.fault(f"memory grew from {before >> 20} to {after >> 20} MiB; the server and its children: {grown}")
    state = httpx.get(f"{server.url}/get_server_info").json()["internal_states"][0]
    if state["pages_held"] or state["running"] or state["waiting"] or httpx.get(f"{server.url}/load").json()["server_load"]:
        told.fault(f"something is left: {state}")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--model", default="dummy:llama")
    given = parser.parse_args()
    options = ("--threads", "1", "--num-pages", "512", "--context-length", "1024", "--max-stored-responses", "100")
    with serving(given.model, *options) as server:
        told = asyncio.run(soak(server, given.seconds, given.clients))
    print(json.dumps({"bench": "soak", "seconds": given.seconds, "clients": given.clients, **told.counts}))
    for fault in told.faults[:20]:
        print(fault)
    return 1 if told.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
