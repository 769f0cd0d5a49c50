"""Times on a device: a kernel's, what the device can do at most, and for how much of an engine's time it waits for the host.

A CPU, which only tries the script, runs everything once.
"""

import statistics
import time
from collections.abc import Callable, Iterable

import torch

from benchmarks.floors import Ceilings

__all__ = ["ceilings", "gaps_share", "seconds_of", "waiting_share"]

REPEATS, BATCHES = 10, 5

HANDOVER = 5.0
"""Microseconds up to which the device passes from one kernel to the next by itself, as it does within a graph."""


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """How long the device takes for `run`: the median of some batches of runs back to back."""
    run()
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    run()
    batch = torch.cuda.CUDAGraph()  # launched by hand, small kernels would wait for the host, and that would be measured
    with torch.cuda.graph(batch):
        for _ in range(REPEATS):
            run()
    taken = []
    for _ in range(BATCHES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        begin.record()
        batch.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3 / REPEATS)
    return float(statistics.median(taken))


def ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """Bytes that a large copy moves in a second, read and written, and operations of a large matrix product."""
    on_cuda = device.type == "cuda"
    count, size = (2**30, 8192) if on_cuda else (2**22, 256)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * count / seconds_of(lambda: target.copy_(source), device)
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    return Ceilings(copied, 2 * size**3 / seconds_of(lambda: left @ right, device))


def waiting_share(run: Callable[[], object], device: torch.device) -> float | None:
    """The share of `run`'s time in which the device waited for the host; None on a CPU. Takes a profile: `run` should be short.

    It has run twice before, so that no graph is captured meanwhile.
    """
    if device.type != "cuda":
        return None
    run()
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize(device)
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    return gaps_share([(event.time_range.start, event.time_range.end) for event in events])


def gaps_share(busy: Iterable[tuple[float, float]]) -> float:
    """Of the time between the first and the last of the intervals (microseconds), the share of gaps longer than HANDOVER."""
    spans = sorted(busy)
    edge, waited = spans[0][0], 0.0
    for begin, end in spans:
        if begin - edge > HANDOVER:
            waited += begin - edge
        edge = max(edge, end)
    return waited / (edge - spans[0][0])
