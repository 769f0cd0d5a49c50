"""How many KV pages an engine gets: as asked, or as memory allows.

Asked once when a runner is loaded, after the weights are in memory, so that what is measured is what is left.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from branchpoint.runtime.attention import kv_bytes_per_page
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import CapacityError
from branchpoint.runtime.models.config import ModelConfig

__all__ = ["PoolSize", "available_memory", "host_slots", "size_pool"]

GIB = 2**30
CPU_SHARE, CPU_CAP = 0.25, 2 * GIB
CPU_LIMIT_SHARE = 0.5
CUDA_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The pool's pages, the bytes they take, and in words where the number comes from."""

    num_pages: int
    num_bytes: int
    reason: str


def size_pool(config: EngineConfig, shape: ModelConfig, dtype: torch.dtype, device: torch.device) -> PoolSize:
    """The size of the KV pool.

    `num_pages` is taken as it is (a request that can't fit is then refused by itself). `kv_memory_gib` is divided by the
    size of a page. Else a CPU gives a quarter of the available memory, at most 2 GiB, but up to half where one sequence of
    full context needs it; CUDA gives 85 % of what is free. Never more than max_sequences full contexts. Raises CapacityError
    where memory holds less than one full context, or less than what was asked for.
    """
    page_bytes = kv_bytes_per_page(shape, config.page_size, dtype)
    if config.num_pages is not None:
        _check_memory(config.num_pages * page_bytes, device, f"num_pages={config.num_pages}", "num_pages")
        return PoolSize(config.num_pages, config.num_pages * page_bytes, f"num_pages={config.num_pages}")
    needed = -(-shape.context_length // config.page_size)
    if config.kv_memory_gib is not None:
        budget, reason = int(config.kv_memory_gib * GIB), f"kv_memory_gib={config.kv_memory_gib:g}"
    else:
        budget, reason = _measured(device, needed * page_bytes)
    pages = min(budget // page_bytes, config.max_sequences * needed)
    if pages < needed:
        raise CapacityError(
            f"The KV pool must hold one sequence of context_length={shape.context_length} tokens, which takes "
            f"{needed * page_bytes / GIB:.3f} GiB, but has {budget / GIB:.3f} GiB ({reason}): "
            f"raise kv_memory_gib, or set context_length to at most {max(1, pages * config.page_size)}.",
            param="kv_memory_gib" if config.kv_memory_gib is not None else "context_length",
        )
    if config.kv_memory_gib is not None:
        _check_memory(pages * page_bytes, device, reason, "kv_memory_gib")
    return PoolSize(pages, pages * page_bytes, reason)


def host_slots(config: EngineConfig, page_bytes: int) -> int:
    """Pages of `page_bytes` that `host_kv_memory_gib` holds. Raises CapacityError where host memory hasn't that much."""
    wanted = int(config.host_kv_memory_gib * GIB)
    _check_memory(wanted, torch.device("cpu"), f"host_kv_memory_gib={config.host_kv_memory_gib:g}", "host_kv_memory_gib")
    return wanted // page_bytes


def available_memory(device: torch.device) -> int:
    """Free bytes on the device; for a CPU what the system and the process's control group still allow."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_system_memory(), _group_memory())


def _check_memory(num_bytes: int, device: torch.device, reason: str, param: str) -> None:
    free = available_memory(device)
    if num_bytes > free:
        raise CapacityError(
            f"The KV pool takes {num_bytes / GIB:.3f} GiB ({reason}), but {free / GIB:.3f} GiB are free; "
            f"lower {param}, or leave it out to let the engine choose.",
            param=param,
        )


def _measured(device: torch.device, one_context: int) -> tuple[int, str]:
    """Bytes for the pool by measurement, and in words how."""
    free = available_memory(device)
    if device.type == "cuda":
        return int(free * CUDA_SHARE), f"{CUDA_SHARE:.0%} of {free / GIB:.1f} GiB free GPU memory"
    budget = min(int(free * CPU_SHARE), CPU_CAP)
    if budget >= one_context:
        return budget, f"{CPU_SHARE:.0%} of {free / GIB:.1f} GiB available memory, at most {CPU_CAP // GIB} GiB"
    limit = int(free * CPU_LIMIT_SHARE)
    return min(one_context, limit), f"one full context, at most {CPU_LIMIT_SHARE:.0%} of {free / GIB:.1f} GiB available memory"


def _system_memory() -> int:
    """MemAvailable of /proc/meminfo in bytes; 4 GiB where the system has no such file."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 4 * GIB
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 4 * GIB)


def _group_memory() -> int:
    """What the control group (version 2, as containers see it) still allows in bytes; very much where it sets no limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (group / "memory.max").read_text().strip(), (group / "memory.current").read_text().strip()
        return max(0, int(limit) - int(used)) if limit != "max" else 2**62
    except (OSError, ValueError):
        return 2**62
