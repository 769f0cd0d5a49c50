"""What HTTP costs: the same requests on the engine in this process and through a server, in turn.

`python -m benchmarks.serving [--model smollm2] [--streams 64] [--json]`. Bars: at 64 streams at least 0.95 of the throughput, and
a first token less than 5 ms later.
"""

import argparse
import asyncio
import statistics
from dataclasses import replace

from benchmarks.report import Figure, Report
from benchmarks.server_process import serving
from branchpoint.runtime.bench.client import Target, drive
from branchpoint.runtime.bench.figures import percentile
from branchpoint.runtime.bench.local import LocalBench
from branchpoint.runtime.bench.timing import Timing
from branchpoint.runtime.bench.workload import Session, WorkloadOptions, make_sessions
from branchpoint.runtime.config import EngineConfig

PAGES = 1024
BATCH_TOKENS = 512


def work(streams: int, output_tokens: int, seed: int) -> list[Session]:
    return make_sessions(WorkloadOptions(requests=streams, prompt_tokens=32, output_tokens=output_tokens, spread=0.5, seed=seed))


def rate(timings: list[Timing], seconds: float) -> float:
    assert not any(timing.error for timing in timings), next(timing.error for timing in timings if timing.error)
    return sum(timing.output_tokens for timing in timings) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = Report(json_only=given.json)
    config = EngineConfig(
        model=given.model, threads=given.threads, num_pages=PAGES, max_batch_tokens=BATCH_TOKENS, context_length=1024
    )
    options = [
        "--threads",
        str(given.threads),
        "--num-pages",
        str(PAGES),
        "--max-batch-tokens",
        str(BATCH_TOKENS),
        "--context-length",
        "1024",
    ]
    with LocalBench(config) as local, serving(given.model, *options) as server:
        target = Target(server.url, given.model)

        def asked(sessions: list[Session]) -> tuple[list[Timing], float]:
            return asyncio.run(drive(target, sessions, [0.0] * len(sessions)))

        inside, outside = list[float](), list[float]()
        for run in range(given.runs + 1):
            sessions = work(given.streams, given.output_tokens, run)
            one, other = rate(*local.throughput(sessions)), rate(*asked(sessions))
            if run:  # the first warms both up
                inside.append(one)
                outside.append(other)
        case = f"{given.streams} streams, served against in process"
        report.add(Figure("serving", case, "tok/s", statistics.median(outside), "in process", statistics.median(inside)))
        alone = [work(1, 4, 100 + run)[0] for run in range(20)]
        first_inside = [local.throughput([session])[0][0].first * 1000 for session in alone]
        one_by_one = asyncio.run(
            drive(replace(target, concurrency=1), alone, [0.0] * len(alone))
        )  # on one connection, as clients do
        first_outside = [timing.first * 1000 for timing in one_by_one[0]]
        later = statistics.median(outer - inner for outer, inner in zip(first_outside, first_inside, strict=True))
        report.add(
            Figure(
                "serving",
                "time to first token of one request",
                "ms",
                percentile(first_outside, 50),
                "in process",
                percentile(first_inside, 50),
                lower_is_better=True,
            )
        )
        report.add(Figure("serving", "HTTP's part of it", "ms", later))
    report.close()


if __name__ == "__main__":
    main()
