"""What kernels can't go below, held against numbers worked out by hand."""

import torch

from benchmarks.floors import Ceilings, Work, attention_work, linear_work, merge_work, rope_write_work
from branchpoint.kernels.prefixes import SharedPrefix
from branchpoint.kernels.tiles import TileShape

LLAMA = TileShape(32, 8, 128, torch.bfloat16, torch.bfloat16, 16)


def test_decoding_is_bound_by_the_bytes_of_its_contexts() -> None:
    work = attention_work([4095] * 64, [1] * 64, LLAMA)
    assert work == Work(64 * 4096 * 4096 + 2 * 64 * 4096 * 2, 4 * 64 * 4096 * 4096)
    assert work.seconds(Ceilings(4e12, 8e14)) == work.bytes / 4e12
    assert work.share(2 * work.bytes / 4e12, Ceilings(4e12, 8e14)) == 0.5


def test_prefill_is_bound_by_its_products() -> None:
    work = attention_work([0], [4096], LLAMA)
    assert work.operations == 4 * 32 * 128 * 4096 * 4097 // 2
    assert work.seconds(Ceilings(4e12, 8e14)) == work.operations / 8e14


def test_shared_keys_count_once() -> None:
    apart, together = (
        attention_work([2048] * 8, [1] * 8, LLAMA, shared) for shared in ([], [SharedPrefix(tuple(range(8)), 0, 128)])
    )
    assert apart.bytes - together.bytes == 7 * 2048 * 4096
    assert apart.operations == together.operations


def test_other_floors_count_each_input_and_output_once() -> None:
    assert linear_work(1, 4096, 6144, 2) == Work(2 * (4096 * 6144 + 4096 + 6144), 2 * 4096 * 6144)
    assert merge_work(2, 6, LLAMA).bytes == 6 * 32 * 129 * 4 + 2 * 4096 * 2
    assert rope_write_work(1, LLAMA).bytes == 2 * (6144 + 256 + 6144)
    assert (linear_work(1, 8, 8, 2) + Work(1)).bytes == linear_work(1, 8, 8, 2).bytes + 1
