"""The attention kernels, compiled for Hopper in the forms that their launchers launch: they compile, within its limits."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels import paged
from branchpoint.kernels.laying import plan_tiles
from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.tiles import TilePlan, TileShape
from tests.kernels.compiled import Compiled, compile_launches, needs_compiler

pytestmark = pytest.mark.timeout(660)  # the compiler is ended after 600: on a machine that does other things it takes minutes

CPU = torch.device("cpu")
LLAMA = TileShape(32, 8, 128, torch.bfloat16, torch.bfloat16, 16)
SMALL = 99 * 1024
SHAPES = {
    "16 bit": LLAMA,
    "8-bit cache": replace(LLAMA, kv_dtype=torch.float8_e4m3fn),
    "half, pages of 1": replace(LLAMA, heads=16, dtype=torch.float16, kv_dtype=torch.float16, page_size=1),
    "heads of 64": replace(LLAMA, heads=9, kv_heads=3, head_dim=64),
    "heads of 80": replace(LLAMA, kv_heads=32, head_dim=80, page_size=64),
    "heads of 96": replace(LLAMA, heads=24, head_dim=96),
    "heads of 256": replace(LLAMA, heads=8, kv_heads=1, head_dim=256),
    "a small device": replace(LLAMA, shared_memory=SMALL),
    "heads of 256 on a small device": replace(LLAMA, heads=8, kv_heads=1, head_dim=256, shared_memory=SMALL),
    "32 bit": replace(LLAMA, dtype=torch.float32, kv_dtype=torch.float32),
}


def launch_attention(name: str, *trees: Sequence[int]) -> None:
    """Both kernels in all forms: narrow, middle and wide tiles, and the merge; with `trees` of the three slots."""
    shape = SHAPES[name]
    group = shape.heads // shape.kv_heads
    counts = [1, max(1, 24 // group), 200]
    lengths = [4000, 100, 200]
    pages = [[0] * -(-length // shape.page_size) for length in lengths]
    starts = [length - count for length, count in zip(lengths, counts, strict=True)]
    plan = plan_tiles(SlotTable(pages, starts, counts, shape.page_size, trees), shape, CPU)
    _attend(shape, sum(counts), plan)


def launch_decode() -> None:
    """The forms of short drafts in long contexts alone."""
    _attend(LLAMA, 1, plan_tiles(SlotTable([[0] * 250], [3999], [1], 16), LLAMA, CPU))


def _attend(shape: TileShape, rows: int, plan: TilePlan) -> None:
    cache = torch.zeros(shape.page_size, 2 * shape.kv_heads, shape.head_dim, dtype=shape.kv_dtype)
    scales = torch.ones(2 * shape.kv_heads) if shape.kv_dtype != shape.dtype else None
    q = torch.zeros(rows, shape.heads, shape.head_dim, dtype=shape.dtype)
    paged.paged_attention(q, cache, plan, 0.1, Scratch(shape.dtype, CPU), scales)


def _check(found: Sequence[Compiled], shape: TileShape) -> None:
    *tiles, merge = found
    assert merge.stack == 0
    for each, tiling in zip(tiles, shape.sizes[: len(tiles)], strict=True):
        assert each.constants["BLOCK_M"] == tiling.rows
        assert each.spilling <= 2, f"{tiling}: its loops move more than a register to memory and back"
        assert each.shared <= shape.shared_memory
        assert each.count("LDGSTS") > 0, f"{tiling}: keys aren't loaded ahead of their use"
        block = 2 * tiling.keys * shape.head_dim * shape.kv_dtype.itemsize
        assert each.shared >= (tiling.stages - 1) * block, f"{tiling}: keys are loaded fewer steps ahead than its stages say"
        products = "FFMA" if shape.dtype == torch.float32 else "HMMA" if tiling.rows < 64 else "HGMMA"
        assert each.count(products) > 0, f"{tiling}: products aren't taken by {products}"
    narrow = tiles[0]
    assert narrow.shared * 2 <= shape.shared_memory, "one program's loads don't fill a multiprocessor's bandwidth: two must fit"
    assert narrow.registers * 32 * narrow.warps * 2 <= 65536


@needs_compiler
def test_decoding_compiles_for_hopper() -> None:
    found = compile_launches(f"{__name__}:launch_decode")
    assert found[0].stack == 0
    _check(found, LLAMA)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["16 bit", "8-bit cache", "32 bit"])
def test_forms_for_trees_compile_too(name: str) -> None:
    found = compile_launches(f"{__name__}:launch_attention", name, (), (0, 1, 0), (0, 0))
    assert all(each.constants["TREES"] for each in found[:-1])
    _check(found, SHAPES[name])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_every_form_compiles_for_hopper_without_spills(name: str) -> None:
    _check(compile_launches(f"{__name__}:launch_attention", name), SHAPES[name])
