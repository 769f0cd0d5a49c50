"""The small kernels compile for Hopper as their launchers launch them, and none spills registers.

A kernel is compiled anew for each combination of types, constants and alignments that it is launched with. While an engine serves
everybody waits for that: what it needs is compiled when it starts.
"""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels import activation, norm, rotary
from branchpoint.kernels.compiling import collect_launches, compile_launches
from branchpoint.kernels.operations import triton_operations
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.device_sampler import DeviceSampler
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.models import decoder
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.tiled_attention import TiledAttention
from branchpoint.runtime.weights.loader import load_model
from tests.kernels.compiled import compile_launches as forms_launched
from tests.kernels.compiled import needs_compiler, see_hopper

pytestmark = [needs_compiler, pytest.mark.timeout(660)]  # the compiler is ended after 600: minutes, on a busy machine

CPU = torch.device("cpu")
VOCABULARIES = (151936, 128256, 49152)
STEPS = [([64], 1), ([900], 1), ([64, 900], 2), ([200] * 9, 1), ([900] * 8, 5), ([500], 70), ([9], 9), ([40] * 9, 17)]
"""Contexts of a step's slots, and how many tokens each computes."""


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


def start_and_serve(vocabulary: int) -> tuple[list[str], list[str]]:
    """Kernels that an engine compiles as it starts, and those that all kinds of requests and steps would have compiled later."""
    decoder.operations_for = lambda device: triton_operations()  # type: ignore[attr-defined]
    loaded = load_model(EngineConfig(model="dummy:qwen3", dtype="bfloat16", threads=1), CPU)
    attention = TiledAttention(loaded.config, 300, 16, torch.bfloat16, CPU, query_dtype=torch.bfloat16, max_sequences=9)
    sampler = DeviceSampler((2,))
    runner = TorchRunner(loaded.model, attention, sampler, CPU)

    def start() -> None:
        attention.warm_up()
        runner.warm_up()
        sampler.warm_up(vocabulary, CPU)

    def serve() -> None:
        _sample(sampler, vocabulary)
        for lengths, count in STEPS:
            runner.execute(StepPlan(tuple(_slot(at, length, count) for at, length in enumerate(lengths))), lambda: None)

    started, served = collect_launches(start), collect_launches(serve)
    return [name for name, _ in started], [name for name, key in served if (name, key) not in started]


def _sample(sampler: DeviceSampler, vocabulary: int) -> None:
    options = [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"repetition_penalty": 1.5}]
    options += [{"logprobs": count} for count in (0, 1, 3, 20)]
    for count in (1, 2, 3, 4, 16, 17):
        for option in options:
            sequences = [Sequence(str(at), 0, list(range(at + 3)), 1, SamplingParams(**option), at) for at in range(count)]  # type: ignore[arg-type]
            rows = [WantedRow(each, each.num_tokens - 1, True) for each in sequences]
            for mask in (None, np.ones((count, -(-vocabulary // 32)), np.int32)):
                sampler.begin(torch.zeros(count, vocabulary), rows, mask)


def _slot(number: int, length: int, count: int) -> Slot:
    """A slot that computes the last `count` tokens of `length`, and draws behind them."""
    pages = [(50 * number + at) % 300 for at in range(-(-length // 16))]
    sequence = Sequence(str(number), 0, [0] * length, length, SamplingParams(temperature=0.0), 0, pages=pages)
    return Slot(sequence, length - count, count, (length - 1,))


def compile_norms(times: int) -> list[int]:
    """How many forms of norms are compiled in threads, as often as that is asked for."""

    def norms() -> None:
        x = torch.zeros(3, 64)
        norm.add_rms_norm(x, norm.rms_norm(x, x[0], 1e-5), x[0], 1e-5)

    return [compile_launches(norms, CPU, 2) for _ in range(times)]


def see_all() -> dict[str, object]:
    """Both in one process: loading torch and Triton takes longer than they do."""
    started, late = start_and_serve(VOCABULARIES[0])
    return {"started": started, "late": late, "norms": compile_norms(2)}


def launch_sampling() -> None:
    """Draws, log-probabilities and changes of logits, for the vocabularies of some models."""
    for vocabulary in VOCABULARIES:
        DeviceSampler((2,)).warm_up(vocabulary, CPU)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[object]]:
    told: dict[str, list[object]] = see_hopper(f"{__name__}:see_all")
    return told


def test_what_an_engine_serves_was_compiled_when_it_started(seen: dict[str, list[object]]) -> None:
    assert seen["late"] == []
    kernels = {str(name).rsplit(".", 1)[-1] for name in seen["started"]}
    assert kernels >= {
        "_tile_kernel",
        "_threshold_kernel",
        "_adjust_kernel",
        "_segment_kernel",
        "_norm_kernel",
        "_rope_write_kernel",
    }


def test_what_was_compiled_at_once_is_not_compiled_again(seen: dict[str, list[object]]) -> None:
    assert seen["norms"] == [2, 0]


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", VOCABULARIES[1:])
def test_vocabularies_of_other_sizes_are_served_as_well(vocabulary: int) -> None:
    assert see_hopper(f"{__name__}:start_and_serve", vocabulary)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch_layers", "launch_sampling"])
def test_small_kernels_compile_and_do_not_spill(name: str) -> None:
    for form in forms_launched(f"{__name__}:{name}"):
        assert form.stack == 0, f"{form.kernel} {form.constants} spills {form.stack} bytes a thread"
        assert form.registers * form.warps * 32 <= 65536
