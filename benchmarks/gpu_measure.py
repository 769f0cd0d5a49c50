"""Times on a device: a kernel's, what the device can do at most, and how much of an engine's time it is busy.

A CPU, which only tries the script, runs everything once.
"""

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.floors import Ceilings

__all__ = ["busy_share", "ceilings", "seconds_of"]

REPEATS, BATCHES = 10, 5


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


def busy_share(run: Callable[[], object], device: torch.device) -> float | None:
    """The share of `run`'s time in which the device computed; None on a CPU. Takes a profile, so `run` should be short.

    It has run twice before, so that no graph is captured meanwhile.
    """
    if device.type != "cuda":
        return None
    run()
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        started = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        taken = time.perf_counter() - started
    busy = sum(event.self_device_time_total for event in profile.key_averages())
    return float(busy) / 1e6 / taken
