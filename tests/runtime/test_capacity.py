"""The size of the KV pool: as asked, as measured, or refused with what to change."""

import pytest
import torch

from branchpoint.runtime import capacity
from branchpoint.runtime.capacity import GIB, size_pool
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import CapacityError
from branchpoint.runtime.models.config import ModelConfig

CPU = torch.device("cpu")
SHAPE = ModelConfig(
    architecture="llama",
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocabulary_size=49152,
    context_length=8192,
)
PAGE = 2 * 30 * 3 * 64 * 4 * 16


def _config(**options: int | float) -> EngineConfig:
    return EngineConfig(model="dummy:llama", **options)  # type: ignore[arg-type]  # the options of one test


def _free(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda device: int(gib * GIB))


def test_a_number_of_pages_is_taken_as_it_is() -> None:
    pool = size_pool(_config(num_pages=7), SHAPE, torch.float32, CPU)
    assert (pool.num_pages, pool.num_bytes) == (7, 7 * PAGE)


def test_kv_memory_is_divided_by_the_size_of_a_page() -> None:
    assert size_pool(_config(kv_memory_gib=1), SHAPE, torch.float32, CPU).num_pages == GIB // PAGE
    assert size_pool(_config(kv_memory_gib=1), SHAPE, torch.bfloat16, CPU).num_pages == GIB // (PAGE // 2)


def test_measured_memory_gives_a_quarter_up_to_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 4)
    assert size_pool(_config(), SHAPE, torch.float32, CPU).num_pages == GIB // PAGE
    _free(monkeypatch, 64)
    pool = size_pool(_config(), SHAPE, torch.float32, CPU)
    assert pool.num_pages == 2 * GIB // PAGE
    assert "at most 2 GiB" in pool.reason


def test_one_full_context_may_take_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 1)
    assert size_pool(_config(), SHAPE, torch.float32, CPU).num_pages == 512


def test_too_little_memory_says_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 0.5)
    with pytest.raises(CapacityError, match=r"context_length=8192.*raise kv_memory_gib, or set context_length to at most \d+"):
        size_pool(_config(), SHAPE, torch.float32, CPU)
    with pytest.raises(CapacityError, match=r"kv_memory_gib=0\.1"):
        size_pool(_config(kv_memory_gib=0.1), SHAPE, torch.float32, CPU)


def test_a_gpus_pool_is_its_share_less_what_is_taken_and_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 64)
    monkeypatch.setattr(capacity, "total_memory", lambda device: 80 * GIB)
    cuda = torch.device("cuda")
    pool = size_pool(_config(max_sequences=4096), SHAPE, torch.bfloat16, cuda, activations=2 * GIB)
    assert pool.num_pages == (72 - 16 - 2) * GIB // (PAGE // 2)
    assert "0.9 of 80.0 GiB GPU memory, less 16.0 GiB taken and 2.0 GiB for activations" in pool.reason
    half = size_pool(_config(max_sequences=4096, gpu_memory_utilization=0.5), SHAPE, torch.bfloat16, cuda, activations=2 * GIB)
    assert half.num_pages == (40 - 16 - 2) * GIB // (PAGE // 2)
    with pytest.raises(
        CapacityError, match=r"raise gpu_memory_utilization=0\.2, set kv_cache_dtype to fp8, lower max_batch_tokens"
    ):
        size_pool(_config(gpu_memory_utilization=0.2), SHAPE, torch.bfloat16, cuda)


def test_a_pool_never_exceeds_what_all_sequences_could_use() -> None:
    assert size_pool(_config(kv_memory_gib=8, max_sequences=2), SHAPE, torch.float32, CPU).num_pages == 1024
