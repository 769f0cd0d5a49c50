"""Programs in the shapes of the SGLang paper's evaluation, on SmolLM2 and a CPU: `python -m benchmarks.programs`.

For each shape: the programs, run at once through the language; beside them the same calls as independent requests (no hints, a
request for each option of a select, each sent as soon as a client could), to the same engine, to one whose calls don't wait for
what another is computing, and to one without a cache; the achieved hit rate beside the best possible one; forward passes and the
tokens that they computed. `most_gained`: how many times as fast these requests could be at most, whatever was known of them,
since neither the longest chain of calls nor a perfect cache's tokens can be less. Programs and requests run in turn, each time
on an empty cache: after a run of the programs that isn't counted, both twice, neither always first.

With `--pool-share 0.5` the engine's pool holds half of the tokens that the programs of a run come to, each shared one counted
once, as a server's does under load. Nothing else differs: the same engine with the same options and policy for both, the same
calls, all programs started at once. `time` is until all have ended, `mean` how long a program takes on average.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import mean, median
from typing import get_args

import branchpoint as bp
from benchmarks.report import Figure, Report
from benchmarks.traces.bound import Work
from benchmarks.traces.recorder import Answered, Recorder
from benchmarks.traces.replay import Replay
from benchmarks.traces.reuse import Reuse
from benchmarks.traces.shapes import SHAPES, Shape
from branchpoint.lang.program import Program
from branchpoint.runtime.config import EngineConfig, Policy
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.process import EngineThread, build_engine

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds until all programs of a run had ended, those of one on average, and the work that the engine had."""

    all: float
    mean: float
    work: Work


@dataclass(slots=True)
class Measured:
    """Of one shape: what each run took, and what was reused in all of them together."""

    program: list[Taken] = field(default_factory=list)
    raw: list[Taken] = field(default_factory=list)
    hasty: list[Taken] = field(default_factory=list)
    uncached: list[Taken] = field(default_factory=list)
    least: list[Work] = field(default_factory=list)
    program_reuse: Reuse = field(default_factory=Reuse)
    raw_reuse: Reuse = field(default_factory=Reuse)

    def figures(self, name: str) -> list[Figure]:
        """What is printed of shape `name`."""

        def beside(peer: str, taken: list[Taken]) -> list[Figure]:
            return [
                Figure("programs", f"{name}/{what}", unit, own, peer, theirs, lower_is_better=True)
                for (what, unit, own), (_, _, theirs) in zip(_medians(self.program), _medians(taken), strict=True)
            ]

        figures = beside("raw requests", self.raw)
        gains = [one.work.most_gained(least) for one, least in zip(self.raw, self.least, strict=True)]
        figures.append(Figure("programs", f"{name}/most_gained", "x", median(gains)))
        if self.hasty:
            figures += beside("raw requests, none waits", self.hasty)
        if self.uncached:
            figures += beside("raw requests, cache off", self.uncached)
        program, raw = self.program_reuse, self.raw_reuse
        figures.append(Figure("programs", f"{name}/hit_rate", "share", program.rate, "best possible", program.best))
        figures.append(Figure("programs", f"{name}/raw_hit_rate", "share", raw.rate, "best possible", raw.best))
        return figures


def _medians(taken: list[Taken]) -> Iterator[tuple[str, str, float]]:
    yield "time", "s", median(one.all for one in taken)
    yield "mean", "s", median(one.mean for one in taken)
    yield "steps", "count", median(one.work.steps for one in taken)
    yield "tokens", "count", median(one.work.tokens for one in taken)


class Served:
    """An engine, the language's way to it, and what goes that way."""

    def __init__(self, options: argparse.Namespace, *, num_pages: int | None = None, **config: bool) -> None:
        engine = EngineConfig(
            model=options.model,
            cpu_weights=options.cpu_weights,
            threads=options.threads,
            policy=options.policy,
            num_pages=num_pages,
            kv_memory_gib=None if num_pages else 0.5,
            **config,
        )
        self.client = EngineThread(build_engine(engine))
        self.recorder = Recorder(self.client)
        self._engine = bp.Engine.around(self.recorder, self.client.tokenizer)

    def run(self, programs: list[Program[None]]) -> Taken:
        """All at once, on an empty cache."""
        self._engine.flush_cache()
        self.recorder.forget()

        def one(program: Program[None]) -> float:
            program.run(backend=self._engine, config=bp.RunConfig(seed=1))
            return time.perf_counter()

        with ThreadPoolExecutor(len(programs)) as pool:
            return self._taken(lambda: list(pool.map(one, programs)))

    def replay(self, calls: list[Answered]) -> tuple[Taken, list[tuple[str, Answered]]]:
        """The same calls as independent requests, on an empty cache; with their log."""
        self._engine.flush_cache()
        replay = Replay(self.client, self.client.tokenizer, calls)

        def ends() -> list[float]:
            replay.run()
            return list(replay.ended.values())

        return self._taken(ends), replay.log

    def _taken(self, ends: Callable[[], list[float]]) -> Taken:
        """What it takes to do what says when each program had ended."""
        before, started = self.client.stats().result(), time.perf_counter()
        ended = ends()
        after = self.client.stats().result()
        work = Work(after.steps - before.steps, after.computed_tokens - before.computed_tokens)
        return Taken(max(ended) - started, mean(end - started for end in ended), work)

    def close(self) -> None:
        """End the engine."""
        self._engine.close()


def measure(served: Served, others: Mapping[str, Served], programs: Callable[[int], list[Program[None]]], runs: int) -> Measured:
    """Run one shape in every way: for each set of texts the programs once uncounted, which says what the calls are, and then
    programs and requests twice each, neither always first; on the engines that do less only once.
    """
    found = Measured()
    for run in range(runs):
        served.run(programs(run))
        log, calls = served.recorder.log, served.recorder.calls
        for by_program in (True, False, False, True) if run % 2 else (False, True, True, False):
            if by_program:
                found.program.append(served.run(programs(run)))
                found.program_reuse.add(served.recorder.log)
            else:
                taken, raw_log = served.replay(calls)
                found.raw.append(taken)
                found.raw_reuse.add(raw_log)
                found.least.append(Work.least(log))
        if not run:
            found.hasty += [others["hasty"].replay(calls)[0]] if "hasty" in others else []
            found.uncached += [others["uncached"].replay(calls)[0]] if "uncached" in others else []
    return found


def pressed(options: argparse.Namespace, served: Served, programs: list[Program[None]]) -> Served:
    """An engine whose pool holds the asked share of what `programs` come to, and at least the longest call."""
    served.run(programs)
    reuse = Reuse()
    reuse.add(served.recorder.log)
    size = served.client.info.page_size
    longest = max(len(answered.computed) for answered in served.recorder.calls)
    return Served(options, num_pages=max(int(reuse.distinct * options.pool_share), longest + 4 * size) // size)


def several(shape: Shape, sets: int) -> Callable[[int], list[Program[None]]]:
    """So many sets of programs at once, each set with texts of its own."""
    return lambda run: [program for number in range(sets) for program in shape(run * sets + number)]


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cpu-weights", default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--policy", default="program", choices=get_args(Policy))
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--sets", type=int, default=1, help="sets of programs that run at once")
    parser.add_argument("--pool-share", type=float, help="KV pool, as a share of what the programs of a run come to")
    parser.add_argument("--runs", type=int, default=2, help="sets of texts, each run twice in both ways")
    parser.add_argument("--no-uncached", action="store_true", help="leave out the engine without a cache")
    parser.add_argument("--no-hasty", action="store_true", help="leave out the engine whose calls don't wait for each other")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report, served = Report(json_only=options.json), Served(options)
    others: dict[str, Served] = {}
    if not options.no_uncached:
        others["uncached"] = Served(options, radix_cache=False)
    if not options.no_hasty and not options.pool_share:
        others["hasty"] = Served(options, await_prefixes=False)
    try:
        served.run(SHAPES["few_shot_select"](-1)[:1] + SHAPES["skeleton"](-1)[:1])  # what is done once is done before
        for name in options.shapes:
            programs = several(SHAPES[name], options.sets)
            tight = pressed(options, served, programs(-1)) if options.pool_share else served
            for figure in measure(tight, others, programs, options.runs).figures(name):
                report.add(figure)
            if tight is not served:
                tight.close()
    finally:
        for engine in (served, *others.values()):
            engine.close()
    report.close()


if __name__ == "__main__":
    main()
