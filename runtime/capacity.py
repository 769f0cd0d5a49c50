"""How many KV pages an engine gets: as asked, or as memory allows.

Asked once when a runner is loaded, after the weights are in memory, so that what is measured is what is left.
"""

from dataclasses import dataclass

import torch

from branchpoint.runtime.attention import kv_bytes_per_page
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import CapacityError
from branchpoint.runtime.machine import available_memory
from branchpoint.runtime.models.config import ModelConfig

__all__ = ["PoolSize", "host_slots", "size_pool"]

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
