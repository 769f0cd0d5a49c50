"""Scheduler and radix tree under load without a model: `python -m benchmarks.simulate`.

The engine is the real one; its runner lets a cost model's time pass (by default that of an 8B model on an H200) and answers with
scripted lengths. For each shape of programs and each policy: cache hit rate beside the best possible one, prompt tokens computed
beside the fewest possible, mean and p99 completion time of a program beside `fcfs`, preemptions, steps. `program` is given the
hints that the language gives, the others none; `requests` is `program` without them: the same calls to the same engine from
clients that tell nothing. A select is then a request for each option, so only the computed tokens compare.
"""

import argparse
from dataclasses import fields
from typing import get_args

from rich.console import Console
from rich.table import Table

from benchmarks.report import Figure, Report
from benchmarks.simulation.cost import CostModel
from benchmarks.simulation.oracle import Oracle
from benchmarks.simulation.outcome import Outcome
from benchmarks.simulation.shapes import SHAPES
from benchmarks.simulation.site import Setting, arrivals, simulate
from branchpoint.runtime.config import Policy

__all__ = ["main"]

REQUESTS = "requests"
POLICIES: tuple[str, ...] = (*get_args(Policy), REQUESTS)
BASE = "fcfs"
COLUMNS = (
    "shape", "policy", "hit rate", "best", "computed", "mean s", "p99 s", "all s", "gap s", "preempted", "steps", "ms/step",
    "python ms/step",
)  # fmt: skip


def figures(case: str, outcome: Outcome, base: Outcome | None, oracle: Oracle) -> list[Figure]:
    """What is printed of one policy; `base` is what first come, first served gave."""
    peer = "fcfs" if base is not None else None

    def beside(name: str, unit: str, value: float, peers: float | None, *, lower: bool = True) -> Figure:
        return Figure("simulate", f"{case}/{name}", unit, value, peer, peers, lower_is_better=lower)

    steps = max(1, outcome.steps)
    return [
        Figure("simulate", f"{case}/hit_rate", "share", outcome.hit_rate, "best possible", oracle.best_hit_rate),
        Figure(
            "simulate",
            f"{case}/computed",
            "tokens",
            outcome.prefilled_tokens,
            "least possible",
            oracle.least_computed,
            lower_is_better=True,
        ),
        beside("mean_completion", "s", outcome.mean_completion, base.mean_completion if base else None),
        beside("p99_completion", "s", outcome.p99_completion, base.p99_completion if base else None),
        beside("all_done", "s", outcome.seconds, base.seconds if base else None),
        beside("longest_gap", "s", outcome.longest_gap, base.longest_gap if base else None),
        beside("preemptions", "count", outcome.preemptions, base.preemptions if base else None),
        beside("steps", "count", outcome.steps, base.steps if base else None),
        beside(
            "python_per_step", "ms", outcome.wall_seconds / steps * 1e3, base.wall_seconds / base.steps * 1e3 if base else None
        ),
    ]


def row(shape: str, policy: str, outcome: Outcome, oracle: Oracle) -> list[str]:
    """A line of the table for people."""
    steps = max(1, outcome.steps)
    numbers = [outcome.mean_completion, outcome.p99_completion, outcome.seconds, outcome.longest_gap]
    per_step = [f"{outcome.seconds / steps * 1e3:.1f}", f"{outcome.wall_seconds / steps * 1e3:.2f}"]
    counts = [str(outcome.preemptions), str(outcome.steps)]
    rates = [f"{outcome.hit_rate:.3f}", f"{oracle.best_hit_rate:.3f}", f"{outcome.prefilled_tokens / oracle.least_computed:.2f}"]
    return [shape, policy, *rates, *(f"{number:.1f}" for number in numbers), *counts, *per_step]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--programs", type=int, default=1000, help="how many there are")
    parser.add_argument("--rate", type=float, help="programs that start in a second; all at once where left out")
    parser.add_argument("--memory", type=float, default=0.5, help="KV pool, as a share of all distinct tokens of all programs")
    parser.add_argument("--pages", type=int, help="KV pool in pages, instead of --memory")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--max-sequences", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--json", action="store_true", help="leave out the table")
    for field in fields(CostModel):
        parser.add_argument(f"--{field.name}-us", type=float, default=getattr(CostModel(), field.name) * 1e6)
    return parser.parse_args()


def main() -> None:
    """Simulate every shape under every policy, and print what came of it."""
    options = parse()
    report, table = Report(json_only=True), Table(*COLUMNS)
    cost = CostModel(**{field.name: getattr(options, f"{field.name}_us") * 1e-6 for field in fields(CostModel)})
    for name in options.shapes:
        shape, times = SHAPES[name], arrivals(options.programs, options.rate)
        oracle = Oracle.of(shape(index) for index in range(options.programs))
        tokens = max(oracle.distinct_tokens * options.memory, oracle.longest + options.page_size)
        pages = options.pages or int(tokens / options.page_size)
        setting = Setting(cost, pages, oracle.longest + 1, options.page_size, options.batch_tokens, options.max_sequences)
        base: Outcome | None = None
        for policy in options.policies:
            real: Policy = "program" if policy == REQUESTS else policy
            outcome = simulate(shape, times, real, setting, hints=policy == "program")
            for figure in figures(f"{name}/{policy}", outcome, base, oracle):
                report.add(figure)
            table.add_row(*row(name, policy, outcome, oracle))
            base = outcome if policy == BASE else base
    if not options.json:
        Console(width=130).print(table)


if __name__ == "__main__":
    main()
