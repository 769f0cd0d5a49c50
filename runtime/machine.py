"""What this process may use of its machine: cores and memory, within the limits of its control group (a container's).

Asked when a model is loaded and its pool is sized; reads Linux's files, and says the plain count where they are missing.
"""

import math
import os
from pathlib import Path

import torch

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["available_memory", "total_memory", "usable_cores", "use_threads"]

_GIB = 2**30
_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60


def usable_cores() -> int:
    """CPU cores worth a thread each, at least 1: the physical ones this process may run on, or its group's share if less."""
    return max(1, math.floor(min(_physical_cores(), _core_share())))


def available_memory(device: torch.device | None = None) -> int:
    """Free bytes on a CUDA device; else of main memory, what the system and the process's control group still allow."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_system_memory(), _group_memory())


def total_memory(device: torch.device) -> int:
    """Bytes that a CUDA device has in all."""
    return int(torch.cuda.mem_get_info(device)[1])


def use_threads(threads: int | None) -> int:
    """Set torch's thread count for this process and return it: `threads`, or one a usable core (or OMP_NUM_THREADS, if less).

    Raises InvalidRequest for more threads than usable cores: a matrix product only gets slower with them.
    """
    cores = usable_cores()
    if threads is not None and threads > cores:
        raise InvalidRequest(f"threads must be at most the {cores} cores this process may use, got {threads}.", param="threads")
    count = threads if threads is not None else min(cores, torch.get_num_threads())
    torch.set_num_threads(count)
    return count


def _physical_cores() -> int:
    """Physical cores among the logical ones this process may run on; the logical count where the system doesn't tell."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = (_text(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) or str(cpu) for cpu in allowed)
    return len(set(siblings))


def _core_share() -> float:
    """Cores' worth of time the control group gets in each period (version 2, else 1); infinite where it sets no limit."""
    quota, _, period = _text(_GROUPS / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(_GROUPS / "cpu/cpu.cfs_quota_us"), _text(_GROUPS / "cpu/cpu.cfs_period_us")
    limited = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if limited else math.inf


def _system_memory() -> int:
    """MemAvailable of /proc/meminfo in bytes; 4 GiB where the system has no such file."""
    lines = _text(Path("/proc/meminfo")).splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 4 * _GIB)


def _group_memory() -> int:
    """What the control group (version 2, else 1) still allows in bytes, file pages that it would give back counted as free."""
    limit, used, kept = _text(_GROUPS / "memory.max"), _text(_GROUPS / "memory.current"), _GROUPS / "memory.stat"
    if not limit:
        group = _GROUPS / "memory"
        limit, used, kept = _text(group / "memory.limit_in_bytes"), _text(group / "memory.usage_in_bytes"), group / "memory.stat"
    if not (limit.isdecimal() and used.isdecimal()):
        return _NO_LIMIT
    counts = dict(line.split(maxsplit=1) for line in _text(kept).splitlines())
    return max(0, int(limit) - int(used) + int(counts.get("inactive_file", 0)))


def _text(path: Path) -> str:
    """A file's text without spaces around it; empty where it can't be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
