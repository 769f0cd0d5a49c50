"""How many KV pages an engine gets: as asked, or as memory allows.

Asked once when a runner is loaded, after the weights are in memory, so that what is measured is what is left.
"""

from dataclasses import dataclass

import torch

from branchpoint.runtime.attention import kv_bytes_per_page
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import CapacityError
from branchpoint.runtime.machine import available_memory, total_memory
from branchpoint.runtime.models.config import ModelConfig

__all__ = ["PoolSize", "gpu_budget", "host_slots", "size_pool"]

GIB = 2**30
CPU_SHARE, CPU_CAP = 0.25, 2 * GIB
CPU_LIMIT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The pool's pages, the bytes they take, and in words where the number comes from."""

    num_pages: int
    num_bytes: int
    reason: str


def size_pool(
    config: EngineConfig, shape: ModelConfig, dtype: torch.dtype, device: torch.device, activations: int = 0, beside: int = 0
) -> PoolSize:
    """The size of the KV pool; `activations` are the bytes that the largest step takes beside weights and KV.

    Each page has `beside` bytes more in another pool, that of the draft model, which count here too.

    `num_pages` is taken as it is (a request that can't fit is then refused by itself). `kv_memory_gib` is divided by the
    size of a page. Else a CPU gives a quarter of the available memory, at most 2 GiB, but up to half where one sequence of
    full context needs it; a GPU gives `gpu_memory_utilization` of all its memory, less what is taken and `activations`. Never
    more than max_sequences full contexts. Raises CapacityError where memory holds less than one full context, or less than what
    was asked for.
    """
    page_bytes = kv_bytes_per_page(shape, config.page_size, dtype) + beside
    if config.num_pages is not None:
        _check_memory(config.num_pages * page_bytes, device, f"num_pages={config.num_pages}", "num_pages")
        return PoolSize(config.num_pages, config.num_pages * page_bytes, f"num_pages={config.num_pages}")
    needed = -(-shape.context_length // config.page_size)
    if config.kv_memory_gib is not None:
        budget, reason = int(config.kv_memory_gib * GIB), f"kv_memory_gib={config.kv_memory_gib:g}"
    else:
        budget, reason = _measured(config, device, needed * page_bytes, activations)
    pages = min(budget // page_bytes, config.max_sequences * needed)
    if pages < needed:
        raise CapacityError(
            f"The KV pool must hold one sequence of context_length={shape.context_length} tokens, which takes "
            f"{needed * page_bytes / GIB:.3f} GiB, but has {budget / GIB:.3f} GiB ({reason}): "
            f"{_remedy(config, device)}, or set context_length to at most {max(1, pages * config.page_size)}.",
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


def gpu_budget(total: int, free: int, utilization: float, activations: int) -> int:
    """Bytes for KV on a GPU of `total` bytes of which `free` are left: what lies within the share is less what others take."""
    return max(0, int(total * utilization) - (total - free) - activations)


def _remedy(config: EngineConfig, device: torch.device) -> str:
    """What gives the pool more, beside a shorter context."""
    if device.type != "cuda" or config.kv_memory_gib is not None:
        return "raise kv_memory_gib"
    eight = "" if config.kv_cache_dtype == "fp8" else ", set kv_cache_dtype to fp8"
    return f"raise gpu_memory_utilization={config.gpu_memory_utilization:g}{eight}, lower max_batch_tokens"


def _measured(config: EngineConfig, device: torch.device, one_context: int, activations: int) -> tuple[int, str]:
    """Bytes for the pool by measurement, and in words how."""
    free = available_memory(device)
    if device.type == "cuda":
        total = total_memory(device)
        share = f"{config.gpu_memory_utilization:g} of {total / GIB:.1f} GiB GPU memory"
        taken = f"{(total - free) / GIB:.1f} GiB taken and {activations / GIB:.1f} GiB for activations"
        return gpu_budget(total, free, config.gpu_memory_utilization, activations), f"{share}, less {taken}"
    budget = min(int(free * CPU_SHARE), CPU_CAP)
    if budget >= one_context:
        return budget, f"{CPU_SHARE:.0%} of {free / GIB:.1f} GiB available memory, at most {CPU_CAP // GIB} GiB"
    limit = int(free * CPU_LIMIT_SHARE)
    return min(one_context, limit), f"one full context, at most {CPU_LIMIT_SHARE:.0%} of {free / GIB:.1f} GiB available memory"
