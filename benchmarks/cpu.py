"""SmolLM2 on the CPU beside transformers (float32) and llama.cpp (the same GGUF file): `python -m benchmarks.cpu`.

Cases: `single` (128 in, 128 out, one stream), `batch16` (16 requests of mixed lengths), `prefix` (a 1,000-token prefix, 32
suffixes of 20 tokens, 16 out). Every system gets the same token ids, decodes greedily and never stops early; they run in turn.
transformers takes the requests one by one, without reuse; the other two take them all at once, starting with an empty cache.
"""

import argparse
import random
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import DEFAULT_PEERS, Worker, peer_python
from benchmarks.report import Figure, Report
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.weights.resolve import locate

__all__ = ["main"]

VOCABULARY = (1000, 48000)
PEERS = {"transformers": "transformers_cpu", "xllamacpp": "xllamacpp_cpu"}


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(*VOCABULARY) for _ in range(count)]


def workload(case: str, seed: int) -> dict[str, Any]:
    """The work of one case; another seed gives other prompts of the same lengths, so that no cache helps across runs."""
    rng = random.Random(f"{case}{seed}")
    lengths = random.Random(case)
    if case == "single":
        requests = [{"prompt": ids(rng, 128), "max_tokens": 128}]
    elif case == "batch16":
        requests = [{"prompt": ids(rng, lengths.randint(32, 256)), "max_tokens": lengths.randint(32, 128)} for _ in range(16)]
    else:
        prefix = ids(rng, 1000)
        requests = [{"prompt": prefix + ids(rng, 20), "max_tokens": 16} for _ in range(32)]
    return {"requests": requests, "parallel": True, "reuse": case == "prefix"}


def measure(workers: dict[str, Worker], case: str, runs: int) -> dict[str, float]:
    """Generated tokens a second of each system: the median of `runs` runs taken in turn, after one that is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for run in range(runs + 1):
        work = workload(case, run)
        for name, worker in workers.items():
            if run == 0 and name == "transformers" and case != "single":
                continue  # already warm, and by far the slowest
            done = worker.run(work)
            if run:
                rates[name].append(done.tokens / done.seconds)
    return {name: median(values) for name, values in rates.items()}


def model_file(name: str) -> str:
    """The GGUF file of a model, which all systems read."""
    path = locate(name).path
    if path is None or not path.is_file():
        raise SystemExit(f"--model must be a GGUF file or 'smollm2', got {name!r}: llama.cpp reads nothing else.")
    return str(path)


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="a GGUF file; by default the demo model")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--cpu-weights", default="auto")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=["single", "batch16", "prefix"])
    parser.add_argument("--peers", type=Path, default=DEFAULT_PEERS, help="folder with one virtual environment for each peer")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report = Report(json_only=options.json)
    model, threads = model_file(options.model), str(options.threads)
    workers = {"branchpoint": Worker("branchpoint_cpu", model, threads, "--cpu-weights", options.cpu_weights)}
    for name, script in PEERS.items():
        python = peer_python(options.peers, name)
        if python is None:
            report.skip("cpu", name, f"no environment at {name}; see docs/performance.md")
        else:
            workers[name] = Worker(script, model, threads, python=python)
    try:
        for case in options.cases:
            rates = measure(workers, case, options.runs)
            own = rates.pop("branchpoint")
            for name, rate in rates.items():
                report.add(Figure("cpu", case, "tok/s", own, name, rate))
            if not rates:
                report.add(Figure("cpu", case, "tok/s", own))
    finally:
        for worker in workers.values():
            worker.close()
    report.close()


if __name__ == "__main__":
    main()
