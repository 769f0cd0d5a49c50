"""A server at the end of a slow link: a program of four calls run there whole, beside the same program sent call by call.

Used by `language.py`. The server is `branchpoint serve` in a process of its own, the link httpx's with a delay for each request.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import httpx

import branchpoint as bp
from benchmarks.report import Figure, Report

__all__ = ["remote_programs"]

DELAY = 0.05
_READY = re.compile(r"Ready: \S+ on (http://\S+)")


class SlowLink(httpx.AsyncHTTPTransport):
    """The real link, with `DELAY` seconds for each round trip, which it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.trips = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.trips += 1
        await asyncio.sleep(DELAY)
        return await super().handle_async_request(request)


@contextmanager
def _server() -> Iterator[str]:
    """The address of a server with a small model of random weights."""
    command = [sys.executable, "-m", "branchpoint", "serve", "dummy:llama", "--port", "0", "--threads", "1", "--num-pages", "256"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = next(filter(None, map(_READY.search, process.stdout)), None)
        if found is None:
            raise RuntimeError("the server ended before it was ready")
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@bp.function
def four_calls(s: bp.State, topic: str) -> dict[str, Any]:
    """Four calls, each after the one before."""
    s += bp.user(f"About {topic}.") + bp.assistant(bp.gen("first", max_tokens=4))
    s += bp.user("Which?") + bp.assistant(bp.select("kind", ["good", "bad"]))
    s += bp.user("How many?") + bp.assistant(bp.gen("n", int, max_tokens=4))
    s += bp.user("And then?") + bp.assistant(bp.gen("last", max_tokens=4))
    return {"first": s["first"], "kind": s["kind"], "last": s["last"]}


def remote_programs(report: Report, runs: int) -> None:
    """Time and round trips."""
    link, whole, apart = SlowLink(), list[float](), list[float]()
    with _server() as url, bp.RuntimeEndpoint(url, transport=link) as endpoint:
        endpoint.run_remote(four_calls, topic="warmth", seed=0)
        for seed in range(1, runs + 1):
            link.trips, begin = 0, time.perf_counter()
            there = endpoint.run_remote(four_calls, topic="pears", seed=seed)
            whole.append(time.perf_counter() - begin)
            trips, link.trips, begin = link.trips, 0, time.perf_counter()
            here = four_calls.run(topic="pears", seed=seed, backend=endpoint)
            apart.append(time.perf_counter() - begin)
            assert there.value == here.value
    for unit, mine, theirs in (
        ("round trips", float(trips), float(link.trips)),
        ("ms", 1000 * median(whole), 1000 * median(apart)),
    ):
        case = f"remote/four_calls_over_{1000 * DELAY:.0f}_ms"
        report.add(Figure("language", case, unit, mine, "call by call", theirs, lower_is_better=True))
