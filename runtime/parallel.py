"""Where a piece of the model runs: its shard of the weights, and the CPU threads it may use.

Passed into models and weight loading; a model asks its shard, never the environment.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from branchpoint.runtime.errors import InvalidRequest, ModelError

__all__ = ["Shard", "available_memory", "physical_cores", "use_threads"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `size` equal parts that a model's heads and hidden units are cut into; `rank` counts from 0.

    Raises ModelError for a size above 1, which the layers don't cut for yet, and for a rank outside the size.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ModelError(f"A shard's rank must be in [0, {self.size - 1}], got {self.rank}.")
        if self.size != 1:
            raise ModelError(f"Tensor parallelism over {self.size} shards is not implemented; use one (size 1).")


def physical_cores() -> int:
    """Physical cores among the logical ones this process may run on; the logical count where the system doesn't tell."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set[str]()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def available_memory() -> int:
    """Bytes of main memory that can be taken without swapping; all of it where the system doesn't tell what is free."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def use_threads(threads: int | None) -> int:
    """Set torch's thread count for this process and return it: `threads`, or one per physical core (or OMP_NUM_THREADS, if less).

    Raises InvalidRequest for more threads than physical cores: a matrix product only gets slower with them.
    """
    cores = physical_cores()
    if threads is not None and threads > cores:
        raise InvalidRequest(f"threads must be at most the {cores} physical cores, got {threads}.", param="threads")
    count = threads if threads is not None else min(cores, torch.get_num_threads())
    torch.set_num_threads(count)
    return count
