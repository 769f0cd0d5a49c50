"""Programs in the shapes of the SGLang paper's evaluation, on SmolLM2 and a CPU: `python -m benchmarks.programs`.

For each shape: the programs, run at once through the language; beside them the same calls as independent requests (no hints, a
request for each option of a select, each sent as soon as a client could), to the same engine and to one without a cache; and the
achieved hit rate beside the best possible one. Programs and requests run in turn, each time on new texts and an empty cache.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import get_args

import branchpoint as bp
from benchmarks.report import Figure, Report
from benchmarks.traces.recorder import Answered, Recorder
from benchmarks.traces.replay import Replay
from benchmarks.traces.reuse import Reuse
from benchmarks.traces.shapes import SHAPES, Shape
from branchpoint.lang.program import Program
from branchpoint.runtime.config import EngineConfig, Policy
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.process import EngineThread, build_engine

__all__ = ["main"]


@dataclass(slots=True)
class Measured:
    """Of one shape: seconds of each run, and what was reused in all of them together."""

    program: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    uncached: list[float] = field(default_factory=list)
    program_reuse: Reuse = field(default_factory=Reuse)
    raw_reuse: Reuse = field(default_factory=Reuse)

    def figures(self, name: str) -> list[Figure]:
        """What is printed of shape `name`."""
        spent = median(self.program)

        def beside(peer: str, seconds: list[float]) -> Figure:
            return Figure("programs", f"{name}/time", "s", spent, peer, median(seconds), lower_is_better=True)

        figures = [beside("raw requests", self.raw)]
        if self.uncached:
            figures.append(beside("raw requests, cache off", self.uncached))
        program, raw = self.program_reuse, self.raw_reuse
        figures.append(Figure("programs", f"{name}/hit_rate", "share", program.rate, "best possible", program.best))
        figures.append(Figure("programs", f"{name}/raw_hit_rate", "share", raw.rate, "best possible", raw.best))
        return figures


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def run_programs(engine: bp.Engine, programs: list[Program[None]]) -> None:
    """All at once."""
    with ThreadPoolExecutor(len(programs)) as pool:
        for run in [pool.submit(program.run, backend=engine, config=bp.RunConfig(seed=1)) for program in programs]:
            run.result()


class Bench:
    """An engine with a cache, and one without."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._client = self._load(options, radix_cache=True)
        self._recorder = Recorder(self._client)
        self._tokenizer = self._client.tokenizer
        self._engine = bp.Engine.around(self._recorder, self._tokenizer)
        self._uncached = self._load(options, radix_cache=False)

    @staticmethod
    def _load(options: argparse.Namespace, *, radix_cache: bool) -> EngineThread:
        config = EngineConfig(
            model=options.model,
            cpu_weights=options.cpu_weights,
            threads=options.threads,
            policy=options.policy,
            radix_cache=radix_cache,
            kv_memory_gib=0.5,
        )
        return EngineThread(build_engine(config))

    def warm(self) -> None:
        """Run something that isn't measured, with a select and with roles: what is done once is done before."""
        run_programs(self._engine, SHAPES["few_shot_select"](-1)[:1] + SHAPES["skeleton"](-1)[:1])

    def measure(self, shape: Shape, runs: int, uncached_runs: int) -> Measured:
        """Run one shape in every way, in turn."""
        found = Measured()
        for run in range(runs):
            programs = shape(run)
            self._engine.flush_cache()
            self._recorder.forget()
            found.program.append(seconds(lambda programs=programs: run_programs(self._engine, programs)))  # type: ignore[misc]  # bound early
            log, calls = self._recorder.log, self._recorder.calls
            found.program_reuse.add(log)
            self._engine.flush_cache()
            raw, plain = Replay(self._client, self._tokenizer, calls), Replay(self._uncached, self._tokenizer, calls)
            logs: list[list[tuple[str, Answered]]] = []
            found.raw.append(seconds(lambda raw=raw, logs=logs: logs.append(raw.run())))  # type: ignore[misc]  # bound early
            found.raw_reuse.add(logs[0])
            if run < uncached_runs:
                found.uncached.append(seconds(plain.run))
        return found

    def close(self) -> None:
        """End the engines."""
        self._engine.close()
        self._uncached.close()


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cpu-weights", default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--policy", default="program", choices=get_args(Policy))
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--uncached-runs", type=int, default=1, help="of those, how many also without a cache")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report, bench = Report(json_only=options.json), Bench(options)
    try:
        bench.warm()
        for name in options.shapes:
            for figure in bench.measure(SHAPES[name], options.runs, options.uncached_runs).figures(name):
                report.add(figure)
    finally:
        bench.close()
    report.close()


if __name__ == "__main__":
    main()
