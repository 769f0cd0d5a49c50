"""What one engine's steps cost beside the model: `python -m benchmarks.steps`, SmolLM2 on a CPU.

`gap`: the longest time between two tokens of running streams while a prompt of 4,000 tokens is computed in chunks, for some token
budgets, beside the same undisturbed. `bookkeeping`: the share of a step that pool, radix tree and what joins them take, where no
prompt shares anything with another.
"""

import argparse
import time
from collections.abc import Callable
from functools import wraps
from statistics import median

import numpy as np

from benchmarks.report import Figure, Report
from branchpoint.runtime.build import build_engine
from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.loop import HostedEngine
from branchpoint.runtime.messages import Call, Delta
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["main"]

STREAMS, STEPS, LONG = 4, 20, 4000
ASKED = (
    "admit", "cached_tokens", "forget", "grow", "missing", "publish", "release", "settle", "shared_prefix", "take_copies",
)  # fmt: skip


def call(name: str, length: int, max_tokens: int, seed: int) -> Call:
    """A prompt of random tokens, which shares nothing with others."""
    prompt = tuple(np.random.default_rng(seed).integers(100, 40_000, length).tolist())
    return Call(name, prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))


def load(options: argparse.Namespace, budget: int) -> HostedEngine:
    return build_engine(EngineConfig(model=options.model, max_batch_tokens=budget, kv_memory_gib=1.0)).engine


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
    """Sums the time that calls of `KVCache`'s methods take, nested ones once."""

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
    """The cache's share of the time of all steps."""
    for number in range(16):
        engine.submit(call(f"call {number}", 200, 48, 1000 + number))
    watch.seconds, started = 0.0, time.perf_counter()
    while engine.has_work:
        engine.step()
    return watch.seconds / (time.perf_counter() - started)


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--budgets", type=int, nargs="*", default=[512, 128], help="max_batch_tokens")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report, watch = Report(json_only=options.json), Stopwatch()
    for name in ASKED:
        setattr(KVCache, name, watch.around(getattr(KVCache, name)))
    for position, budget in enumerate(options.budgets):
        engine = load(options, budget)
        if not position:
            share = bookkeeping(engine, watch)
            report.add(Figure("steps", "bookkeeping, nothing shared", "share", share, "bar", 0.01, lower_is_better=True))
        calm, longest, taken = gaps(engine)
        report.add(Figure("steps", f"gap/budget {budget}", "s", longest, "undisturbed", calm, lower_is_better=True))
        report.add(Figure("steps", f"prompt/budget {budget}", "s", taken))
        engine.close()
    report.close()


if __name__ == "__main__":
    main()
