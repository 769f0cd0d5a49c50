"""Measures what small steps cost by the tokens in them, before anything runs: what decides how many guesses are worth verifying.

Called when an engine with drafters is built; `drafting.cost` reads the answer.
"""

import time
from collections.abc import Callable, Iterable

from branchpoint.runtime.plan import Runner, Slot, StepPlan
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence

__all__ = ["time_steps"]

LAPS = 3
LEAST_SIZES = 3
SECONDS = 3.0
"""After which a slow model is measured no further, if a few sizes are known."""


def time_steps(
    runner: Runner, sizes: Iterable[int], most_sequences: int, page: int, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """The least seconds, by `clock`, of steps that draw at each of so many tokens (ascending) of `most_sequences` at most.

    The steps write to `page` alone, which nobody reads. Sizes that don't fit a page for each sequence are left out.
    """
    began = clock()
    plans = {size: _plan(size, most_sequences, page) for size in sizes if size <= most_sequences * runner.page_size}
    found: dict[int, float] = {}
    for lap in range(LAPS):
        for size, plan in plans.items():
            if clock() - began > SECONDS and (size in found or len(found) >= LEAST_SIZES):
                return found
            if lap == 0:
                runner.execute(plan, lambda: None)  # warms up, or compiles
            started = clock()
            runner.execute(plan, lambda: None)
            found[size] = min(clock() - started, found.get(size, float("inf")))
    return found


def _plan(size: int, most_sequences: int, page: int) -> StepPlan:
    """`size` tokens in as many sequences as may run, each at its beginning and drawn at each of its tokens."""
    slots = []
    for at in range(min(size, most_sequences)):
        count = len(range(at, size, most_sequences))
        sequence = Sequence("", at, [0] * count, 1, SamplingParams(), 0, pages=[page])
        slots.append(Slot(sequence, 0, count, tuple(range(count))))
    return StepPlan(tuple(slots))
