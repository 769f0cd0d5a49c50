"""How an engine is set up: one frozen object, from command line or keyword arguments down to every part that needs it."""

from typing import Literal

import msgspec

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["CpuWeights", "EngineConfig", "Policy"]

CpuWeights = Literal["auto", "float32", "int8", "int4"]
Policy = Literal["fcfs", "lpm", "program"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of an engine. Sizes in tokens unless said otherwise.

    `model` is a Hugging Face folder, a GGUF file, the name of an installed demo model (`smollm2`), or `dummy:ARCH`.
    `kv_memory_gib=None` sizes the pool from the memory that is free. Raises InvalidRequest naming the option.
    """

    model: str
    served_name: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    cpu_weights: CpuWeights = "auto"
    threads: int | None = None
    context_length: int | None = None
    page_size: int = 16
    num_pages: int | None = None
    kv_memory_gib: float | None = None
    max_batch_tokens: int = 2048
    max_sequences: int = 128
    max_queued: int = 4096
    policy: Policy = "program"
    radix_cache: bool = True
    grammar_workers: int = 2
    seed: int | None = None

    def __post_init__(self) -> None:
        bounds = {"page_size": (1, 128), "max_batch_tokens": (1, 2**20), "max_sequences": (1, 2**16), "max_queued": (1, 2**24)}
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidRequest(f"{name} must be in [{low}, {high}], got {value}.", param=name)
        for name in ("threads", "context_length", "num_pages", "kv_memory_gib"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequest(f"{name} must be above 0, got {value}; leave it out to let the engine choose.", param=name)
