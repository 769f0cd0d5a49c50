"""The small kernels compile for Hopper as their launchers launch them, and none spills registers.

A kernel is compiled anew for each combination of types, constants and alignments that it is launched with. While an engine serves
everybody waits for that: what it needs is compiled when it starts.
"""

import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels import activation, norm, rotary
from branchpoint.kernels.layout import SlotTable
from branchpoint.runtime.batch import Batch
from branchpoint.runtime.device_sampler import DeviceSampler
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.models.base import Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.tiled_attention import TiledAttention
from tests.kernels.compiled import compile_launches, needs_compiler

pytestmark = needs_compiler

CPU = torch.device("cpu")
VOCABULARIES = (151936, 128256, 49152)
SHAPE = ModelConfig(
    architecture="qwen3", hidden_size=1024, num_layers=1, num_heads=16, num_kv_heads=8, head_dim=128, intermediate_size=3072,
    vocabulary_size=151936, context_length=4096, qk_norm=True,
)  # fmt: skip


def launch_layers() -> None:
    """The operations of a layer, in all dtypes and for heads of all sizes that models have."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for width in (576, 1024, 4096):
            x, weight = torch.zeros(3, width, dtype=dtype), torch.ones(width, dtype=dtype)
            norm.rms_norm(x, weight, 1e-5)
            norm.add_rms_norm(x, x, weight, 1e-5)
            activation.silu_mul(x)
        for dim in (64, 80, 96, 128, 256):
            qkv, tables = torch.zeros(3, 12, dim, dtype=dtype), torch.zeros(3, 1, dim, dtype=dtype)
            cache, places = torch.zeros(16, 4, dim, dtype=dtype), torch.arange(3)
            rotary.rope_write(qkv, tables, tables, None, 1e-6, cache, places)
            rotary.rope_write(qkv, tables, tables, torch.zeros(1, 10, dim, dtype=dtype), 1e-6, cache, places)
            rotary.rope_write(qkv, tables, tables, None, 1e-6, cache.to(torch.float8_e4m3fn), places, torch.ones(4))


def launch_warm_up(vocabulary: int) -> None:
    """What an engine launches when it starts, of the sampler and of attention."""
    DeviceSampler((2,)).warm_up(vocabulary, CPU)
    attention = _attention()
    attention.warm_up()
    _layer(attention, [64], 16)


def launch_service(vocabulary: int) -> None:
    """The same, then what all kinds of requests and steps launch."""
    launch_warm_up(vocabulary)
    sampler = DeviceSampler((2,))
    options = [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"repetition_penalty": 1.5}]
    options += [{"logprobs": count} for count in (0, 1, 3, 20)]
    for count in (1, 2, 3, 4, 16, 17):
        for option in options:
            sequences = [Sequence(str(at), 0, list(range(at + 3)), 1, SamplingParams(**option), at) for at in range(count)]  # type: ignore[arg-type]
            rows = [WantedRow(each, each.num_tokens - 1, True) for each in sequences]
            sampler.begin(torch.zeros(count, vocabulary), rows, None)
    attention = _attention()
    for lengths, count in [([64], 1), ([3000], 1), ([64, 3000], 2), ([200] * 9, 1), ([3000] * 8, 5), ([500], 70), ([9], 9)]:
        _layer(attention, lengths, count)


def _attention() -> TiledAttention:
    return TiledAttention(SHAPE, 300, 16, torch.bfloat16, CPU, query_dtype=torch.bfloat16, max_sequences=9)


def _layer(attention: TiledAttention, lengths: list[int], count: int) -> None:
    """A layer of a step whose slots compute `count` tokens each."""
    rows = count * len(lengths)
    pages = [list(range(-(-length // 16))) for length in lengths]
    table = SlotTable(pages, [length - count for length in lengths], [count] * len(lengths), 16)
    attention.plan(Batch(torch.zeros(3, rows, dtype=torch.int64), None, table))
    tables, qkv = torch.zeros(2, rows, 1, 128, dtype=torch.bfloat16), torch.zeros(rows, 32, 128, dtype=torch.bfloat16)
    attention.forward(
        0, qkv, Rotation(tables[0].clone(), tables[1].clone(), 1e-6, 8), torch.ones(1, 24, 128, dtype=torch.bfloat16)
    )


def launch_sampling() -> None:
    """Draws, log-probabilities and changes of logits, for the vocabularies of some models."""
    for vocabulary in VOCABULARIES:
        DeviceSampler((2,)).warm_up(vocabulary, CPU)


@pytest.mark.parametrize(
    "vocabulary", [VOCABULARIES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in VOCABULARIES[1:])]
)
def test_what_an_engine_serves_was_compiled_when_it_started(vocabulary: int) -> None:
    warm, served = (
        compile_launches(f"{__name__}:{name}", vocabulary, only_tell=True) for name in ("launch_warm_up", "launch_service")
    )
    assert [each.kernel for each in served[len(warm) :]] == []
    assert {each.kernel for each in warm} >= {"_tile_kernel", "_threshold_kernel", "_adjust_kernel", "_segment_kernel"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch_layers", "launch_sampling"])
def test_small_kernels_compile_and_do_not_spill(name: str) -> None:
    for form in compile_launches(f"{__name__}:{name}"):
        assert form.stack == 0, f"{form.kernel} {form.constants} spills {form.stack} bytes a thread"
        assert form.registers * form.warps * 32 <= 65536
