"""What one engine's steps cost beside the model: `python -m benchmarks.steps`, SmolLM2 on a CPU.

`gap`: the longest time between two tokens of running streams while a prompt of 4,000 tokens is computed in chunks, for some
bounds of a step (`max_step_seconds`), beside the same undisturbed. `bookkeeping`: the share of all time that the scheduler and
what is below it take (order, room, programs, pool, radix tree), where no prompt shares anything with another.
"""

import argparse
import time
from collections.abc import Callable
from functools import wraps
from statistics import median

import msgspec
import numpy as np

from benchmarks.report import Figure, Report
from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.loop import HostedEngine
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.messages import Call, Delta, Hints
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.scheduler import Scheduler

__all__ = ["main"]

STREAMS, STEPS, LONG = 4, 20, 4000
ASKED = ("abandon", "add", "commit", "end_program", "plan", "remove", "took")  # all that an engine asks in a run


def call(name: str, length: int, max_tokens: int, seed: int) -> Call:
    """A prompt of random tokens, which shares nothing with others."""
    prompt = tuple(np.random.default_rng(seed).integers(100, 40_000, length).tolist())
    return Call(name, prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))


def load(options: argparse.Namespace, bound: float) -> HostedEngine:
    config = EngineConfig(
        model=options.model, threads=options.threads, max_batch_tokens=options.budget, max_step_seconds=bound, kv_memory_gib=1.0
    )
    return build_engine(config).engine


def gaps(engine: HostedEngine) -> tuple[float, float, float]:
    """In seconds: the median gap of undisturbed streams, the longest while the long prompt comes in, and how long that takes."""
    for number in range(STREAMS):
        engine.submit(call(f"stream {number}", 64, 10_000, number))
    heard: dict[str, float] = {}

    def step() -> list[float]:
        found = []
        for event in engine.step():
            now = time.perf_counter()
            if isinstance(event, Delta):
                found.append(now - heard.get(event.id, now))
                heard[event.id] = now
        return [gap for gap in found if gap]

    for _ in range(STREAMS):
        step()
    calm = median(gap for _ in range(STEPS) for gap in step())
    engine.submit(call("long", LONG, 1, 99))
    longest, started = 0.0, time.perf_counter()
    while "long" not in heard:
        longest = max([longest, *step()])
    taken = time.perf_counter() - started
    for number in range(STREAMS):
        engine.abort(f"stream {number}")
    engine.step()
    return calm, longest, taken


class Stopwatch:
    """Sums the time that calls of `Scheduler`'s methods take, nested ones once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def around(self, method: Callable[..., object]) -> Callable[..., object]:
        @wraps(method)
        def timed(*args: object, **named: object) -> object:
            self._depth += 1
            started = time.perf_counter()
            try:
                return method(*args, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - started

        return timed


def bookkeeping(engine: HostedEngine, watch: Stopwatch) -> float:
    """The scheduler's share of the time from the first call to the end of the last."""
    watch.seconds, started = 0.0, time.perf_counter()
    for number in range(16):
        hints = Hints(program=f"program {number}", path=(0, 0), siblings=2, returns=True)
        engine.submit(msgspec.structs.replace(call(f"call {number}", 200, 48, 1000 + number), hints=hints))
    while engine.has_work:
        engine.step()
    return watch.seconds / (time.perf_counter() - started)


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--budget", type=int, default=512, help="max_batch_tokens")
    parser.add_argument("--bounds", type=float, nargs="*", default=[0.5, 0.25, 0.0], help="max_step_seconds, 0 for none")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report, watch = Report(json_only=options.json), Stopwatch()
    for name in ASKED:
        setattr(Scheduler, name, watch.around(getattr(Scheduler, name)))
    for position, bound in enumerate(options.bounds):
        engine = load(options, bound)
        if not position:
            share = bookkeeping(engine, watch)
            report.add(Figure("steps", "bookkeeping, nothing shared", "share", share, "bar", 0.01, lower_is_better=True))
        calm, longest, taken = gaps(engine)
        report.add(Figure("steps", f"gap/bound {bound:g}", "s", longest, "undisturbed", calm, lower_is_better=True))
        report.add(Figure("steps", f"prompt/bound {bound:g}", "s", taken))
        engine.close()
    report.close()


if __name__ == "__main__":
    main()
