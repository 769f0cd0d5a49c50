"""Sends sessions to a server of OpenAI's API, at the times that a rate gives, and times what comes back.

Streams everything: times are those of the pieces as they arrive.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from branchpoint.runtime.bench.timing import Timing
from branchpoint.runtime.bench.workload import Ask, Session
from branchpoint.runtime.errors import InvalidRequest

__all__ = ["Target", "arrivals", "drive", "first_model"]

_MOST_CONNECTIONS = 4096
_DATA = "data: "


@dataclass(frozen=True, slots=True)
class Target:
    """A server: `url` without /v1, the `model` to ask for, whether to use chat. `concurrency` bounds the requests at once."""

    url: str
    model: str
    api_key: str = ""
    chat: bool = False
    ignore_eos: bool = True
    concurrency: int | None = None
    timeout: float = 600.0


def first_model(url: str, api_key: str) -> str:
    """What a server calls its model. Raises InvalidRequest where no server answers, or it tells none."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=60)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidRequest(f"No server answers at {url}: {error}. Give its address with --url.", param="url") from error
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        told = f"{url}/v1/models answered {answer.status_code}: {answer.text[:200]}"
        raise InvalidRequest(f"{told} Name the model with --model.", param="url") from error


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """When `count` sessions begin, in seconds: `rate` a second on average (infinite: all at once), gaps of a gamma distribution.

    A `burstiness` of 1 makes a Poisson process, less makes bursts, more a steady stream. Raises InvalidRequest.
    """
    if not rate > 0 or not 0 < burstiness < math.inf:
        raise InvalidRequest(f"rate and burstiness must be above 0, got {rate} and {burstiness}.", param="rate")
    if math.isinf(rate):
        return [0.0] * count
    chance, now, times = random.Random(seed), 0.0, list[float]()
    for _ in range(count):
        times.append(now)
        now += chance.gammavariate(burstiness, 1 / (rate * burstiness))
    return times


async def drive(target: Target, sessions: Sequence[Session], starts: Sequence[float]) -> tuple[list[Timing], float]:
    """All timings, and the seconds from the first request to the last answer. What fails is told in its timing."""
    limits = httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS)
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    room = asyncio.Semaphore(target.concurrency or len(sessions) or 1)
    async with httpx.AsyncClient(base_url=target.url, headers=headers, timeout=target.timeout, limits=limits) as http:
        began = time.perf_counter()

        async def run(session: Session, start: float) -> list[Timing]:
            await asyncio.sleep(max(0.0, began + start - time.perf_counter()))
            async with room:
                return await _session(http, target, session)

        done = await asyncio.gather(*(run(session, start) for session, start in zip(sessions, starts, strict=True)))
        return [timing for timings in done for timing in timings], time.perf_counter() - began


async def _session(http: httpx.AsyncClient, target: Target, session: Session) -> list[Timing]:
    said = list[tuple[str, str]]()
    timings = list[Timing]()
    for ask in session.asks:
        said.append(("user", ask.text))
        timing = await _request(http, target, session.system, said, ask)
        timings.append(timing)
        if timing.error:
            break
        said.append(("assistant", timing.text))
    return timings


async def _request(http: httpx.AsyncClient, target: Target, system: str, said: Sequence[tuple[str, str]], ask: Ask) -> Timing:
    body: dict[str, object] = {"model": target.model, "max_tokens": ask.output_tokens, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}} | ({"ignore_eos": True} if target.ignore_eos else {})
    if target.chat:
        before = [{"role": "system", "content": system}] if system else []
        body["messages"] = before + [{"role": role, "content": text} for role, text in said]
    else:
        body["prompt"] = "\n".join(([system] if system else []) + [text for _, text in said])
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    timing = Timing(time.perf_counter())
    try:
        async with http.stream("POST", path, json=body) as answer:
            if answer.is_error:
                told = (await answer.aread()).decode("utf-8", "replace")
                timing.error = f"{answer.status_code}: {told[:200]}"
            else:
                async for line in answer.aiter_lines():
                    _take(line, timing)
    except httpx.HTTPError as error:
        timing.error = f"{type(error).__name__}: {error}"
    timing.ended = time.perf_counter()
    if not timing.marks and not timing.error:
        timing.error = "the stream ended without output"
    return timing


def _take(line: str, timing: Timing) -> None:
    if not line.startswith(_DATA) or line == _DATA + "[DONE]":
        return
    chunk = json.loads(line[len(_DATA) :])
    if "error" in chunk:
        timing.error = str(chunk["error"].get("message", chunk["error"]))[:200]
        return
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        if text:
            timing.marks.append(time.perf_counter())
            timing.text += text
    if usage := chunk.get("usage"):
        timing.prompt_tokens, timing.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        timing.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
