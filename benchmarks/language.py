"""What the language itself costs, and what it saves: `python -m benchmarks.language`.

Host time per call, threads and memory of 1,000 programs of 8 forks each, beside the same requests made directly of the same
backend (one that answers at once); when the children of a fast branch start while its siblings are slow; how exact a `select`
is, beside the probability of each whole text in an engine without a cache, and how few tokens it computes; what a program that
runs on a server whole saves (`link.py`).
"""

import argparse
import asyncio
import gc
import math
import random
import resource
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import branchpoint as bp
from benchmarks.link import remote_programs
from benchmarks.report import Figure, Report
from branchpoint.lang.backends.base import Capabilities, GenerateRequest, Message, ScoreRequest
from branchpoint.lang.backends.fake import Reply, prompt_text
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.runtime.messages import Completed, Delta, Event, SampleFinished, Scored, Text, Usage
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["main"]

FORKS = 8


class Instant(Dispatched):
    """A backend that answers at once, with one token."""

    capabilities = Capabilities()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        yield Delta(request.id, 0, "word", (1,))
        yield SampleFinished(request.id, 0, "length", None, (), 1)
        yield Completed(request.id, Usage(prompt_tokens=10, prefilled_tokens=10, completion_tokens=1))

    async def score(self, request: ScoreRequest) -> Scored:
        return Scored(request.id, tuple((-1.0,) for _ in request.options), Usage())

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        return "".join(str(message["content"]) for message in messages)


@dataclass(slots=True)
class Spent:
    """Seconds on the clock and on processors, most threads at once, and bytes that the process grew by with all runs kept."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    threads: int = 0
    grown: float = 0.0

    def measure(self, action: Callable[[], object]) -> None:
        """Once more."""
        gc.collect()
        before = _resident()
        wall, processor = time.perf_counter(), time.process_time()
        kept = action()
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.process_time() - processor)
        self.grown = self.grown or _resident() - before  # the first time: later the allocator has the memory already
        del kept


def _resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def fan_out(spent: Spent) -> tuple[bp.Program[list[str]], bp.Program[list[str]]]:
    """A program of one gen and eight forks with a gen each, plain and `async`."""

    def ask(s: bp.State, i: int) -> None:
        s += f"Question {i}:"
        s += bp.gen("a", max_tokens=1)
        with s.fork(FORKS) as forks:
            forks += lambda number: f" part {number}"
            forks += bp.gen("b", max_tokens=1)
        spent.threads = max(spent.threads, threading.active_count())

    @bp.function
    def plain(s: bp.State, i: int) -> list[str]:
        ask(s, i)
        values: list[str] = s["b"]
        return values

    async def in_a_loop(s: bp.State, i: int) -> list[str]:
        ask(s, i)
        values: list[str] = await s.aget("b")
        return values

    return plain, bp.Program[list[str]](in_a_loop)


async def bare(backend: Instant, programs: int) -> None:
    """The same requests, made directly."""

    async def call(text: str) -> None:
        async for _ in backend.generate(GenerateRequest("x", (Text(text),), SamplingParams(max_tokens=1))):
            pass

    async def program(i: int) -> None:
        await call(f"Question {i}:")
        await asyncio.gather(*(call(f"Question {i}:word part {number}") for number in range(FORKS)))

    await asyncio.gather(*map(program, range(programs)))


def overhead(report: Report, programs: int, runs: int) -> None:
    """Host time, threads and memory."""
    backend, calls = Instant(), programs * (1 + FORKS)
    threaded, looped, direct = Spent(), Spent(), Spent()
    plain, _ = fan_out(threaded)
    _, in_a_loop = fan_out(looped)

    async def all_in_a_loop() -> list[bp.Run[list[str]]]:
        return await asyncio.gather(*(in_a_loop.arun(i=i, backend=backend) for i in range(programs)))

    plain.run_batch([{"i": i} for i in range(20)], backend=backend)
    for _ in range(runs):
        direct.measure(lambda: asyncio.run(bare(backend, programs)))
        threaded.measure(lambda: plain.run_batch([{"i": i} for i in range(programs)], backend=backend))
        looped.measure(lambda: asyncio.run(all_in_a_loop()))
    micro = 1e6 / calls
    for name, spent in (("run_batch", threaded), ("async", looped)):
        for unit, mine, theirs in (("us/call", spent.wall, direct.wall), ("cpu us/call", spent.processor, direct.processor)):
            figure = Figure(
                "language",
                f"{name}/host_time",
                unit,
                median(mine) * micro,
                "bare requests",
                median(theirs) * micro,
                lower_is_better=True,
            )
            report.add(figure)
        report.add(Figure("language", f"{name}/threads", "threads", spent.threads))
        report.add(Figure("language", f"{name}/memory", "KiB/call", spent.grown / 1024 / calls))


def fork_latency(report: Report, runs: int) -> None:
    """How long after their own parent the children of a fast branch start, while its siblings take seconds."""
    late: list[float] = []

    def script(request: GenerateRequest) -> Reply:
        text = prompt_text(request)
        if text.endswith("fast"):
            ended.append(time.perf_counter())
        if text.endswith("child"):
            started.append(time.perf_counter())
        return Reply("x", delay=1.0) if text.endswith("slow") else Reply("x")

    @bp.function
    def program(s: bp.State) -> None:
        forks = s.fork(FORKS)
        forks += ["fast", *["slow"] * (FORKS - 1)]
        forks += bp.gen("a")
        for fork in forks:
            children = fork.fork(4)
            children += " child"
            children += bp.gen("b")

    for _ in range(runs):
        ended: list[float] = []
        started: list[float] = []
        gc.collect()  # what earlier figures left would else be collected in one of these runs, for hundreds of milliseconds
        gc.freeze()
        program.run(backend=bp.Fake(script))
        late += [1000 * (each - ended[0]) for each in sorted(started)[:4]]
    gc.unfreeze()
    report.add(Figure("language", "fork/start_after_parent", "ms, worst", max(late)))


def select_exactness(report: Report, prompts: int) -> None:
    """The greatest difference of a select's probabilities from those of the whole texts, each computed afresh without a cache."""
    draw = random.Random(7)
    words = (
        "river",
        "stone",
        "green",
        "seven",
        "light",
        "house",
        "cold",
        "paper",
        "north",
        "music",
        " and",
        " the",
        ", but",
        ".",
        " (",
    )
    options = [" yes", " no", " maybe so", " not at all"]
    exact: dict[str, Any] = {"cpu_weights": "float32", "threads": 1, "context_length": 512}
    worst = 0.0

    @bp.function
    def choose(s: bp.State, text: str) -> None:
        s += text + bp.select("x", options)

    with bp.Engine("smollm2", **exact) as engine, bp.Engine("smollm2", radix_cache=False, **exact) as fresh:
        for _ in range(prompts):
            text = " ".join(draw.choices(words, k=draw.randint(4, 24)))
            found = choose.run(text=text, backend=engine).meta("x").choices
            totals = [_total(fresh, text, option) for option in options]
            whole = math.fsum(math.exp(total - max(totals)) for total in totals)
            truth = [math.exp(total - max(totals)) / whole for total in totals]
            worst = max(worst, *(abs(option.probability - true) for option, true in zip(found, truth, strict=True)))
    report.add(Figure("language", f"select/{prompts}_prompts", "max difference of probabilities", worst))


def select_tokens(report: Report) -> None:
    """Tokens that a select among names with common beginnings computes behind the prompt, beside a sequence for each option."""
    towns = [
        f" {kind} {name} {place}" for kind in ("Upper", "Lower") for name in ("Oak", "Elm", "Ash") for place in ("Hill", "Vale")
    ]

    @bp.function
    def choose(s: bp.State) -> None:
        s += "The village is called" + bp.select("x", towns)

    with bp.Engine("smollm2", cpu_weights="float32", threads=1, context_length=512) as engine:
        usage = choose.run(backend=engine).meta("x").usage
        prompt = len(engine.tokenizer.encode("The village is called"))
        apart = sum(len(engine.tokenizer.encode(town)) for town in towns)
    computed = float(usage.prefilled_tokens - prompt)
    figure = Figure("language", f"select/{len(towns)}_options", "tokens", computed, "each apart", apart, lower_is_better=True)
    report.add(figure)


def _total(fresh: bp.Engine, text: str, option: str) -> float:
    """The log-probability of `option` after `text`: that of the whole text's tokens that carry bytes of the option."""
    tokens = fresh.tokenizer.encode(text + option)
    at, first = 0, 0
    for place, token in enumerate(tokens):
        at += len(fresh.tokenizer.token_bytes(token))
        if at > len(text.encode()):
            first = place
            break
    logprobs = fresh.generate(tokens, max_tokens=0, return_logprob=True, logprob_start_len=0).prompt_logprobs
    return math.fsum(each.logprob or 0.0 for each in logprobs[first:])


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=200, help="of the check of select")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report = Report(json_only=options.json)
    overhead(report, options.programs, options.runs)
    fork_latency(report, options.runs)
    remote_programs(report, options.runs)
    select_tokens(report)
    select_exactness(report, options.prompts)
    report.close()


if __name__ == "__main__":
    main()
