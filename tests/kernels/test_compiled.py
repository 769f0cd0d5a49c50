"""The attention kernels, compiled for Hopper in the forms that their launchers launch: they compile, within its limits."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels import merge, paged
from branchpoint.kernels.laying import plan_tiles
from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.tiles import TileShape
from tests.kernels.compiled import Compiled, Specialisation, compile_kernels, needs_compiler, record

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


def _launches(
    monkeypatch: pytest.MonkeyPatch, shape: TileShape, trees: Sequence[Sequence[int]] = ()
) -> tuple[list[Specialisation], list[Specialisation]]:
    """All forms of both kernels: narrow, middle and wide tiles, and the merge; with `trees` of the three slots."""
    tiles, merges = record(monkeypatch, paged, "_tile_kernel"), record(monkeypatch, merge, "_merge_kernel")
    group = shape.heads // shape.kv_heads
    counts = [1, max(1, 24 // group), 200]
    lengths = [4000, 100, 200]
    pages = [[0] * -(-length // shape.page_size) for length in lengths]
    starts = [length - count for length, count in zip(lengths, counts, strict=True)]
    table = SlotTable(pages, starts, counts, shape.page_size, trees)
    plan = plan_tiles(table, shape, CPU)
    cache = torch.zeros(shape.page_size, 2 * shape.kv_heads, shape.head_dim, dtype=shape.kv_dtype)
    scales = torch.ones(2 * shape.kv_heads) if shape.kv_dtype != shape.dtype else None
    q = torch.zeros(sum(counts), shape.heads, shape.head_dim, dtype=shape.dtype)
    paged.paged_attention(q, cache, plan, 0.1, Scratch(shape.dtype, CPU), scales)
    return tiles, merges


def _check(tiles: list[Compiled], shape: TileShape) -> None:
    for found, tiling in zip(tiles, shape.sizes, strict=True):
        assert found.spilling == 0, f"{tiling}: its loop moves registers to memory"
        assert found.shared <= shape.shared_memory
        assert found.instructions["LDGSTS"] > 0, f"{tiling}: keys aren't loaded ahead of their use"
        products = "FFMA" if shape.dtype == torch.float32 else "HMMA" if tiling.rows < 64 else "HGMMA"
        assert found.instructions[products] > 0, f"{tiling}: products aren't taken by {products}"
    narrow = tiles[0]
    assert narrow.shared * 2 <= shape.shared_memory, "one program's loads don't fill a multiprocessor's bandwidth: two must fit"
    assert narrow.registers * 32 * shape.sizes[0].warps * 2 <= 65536


@needs_compiler
def test_decoding_compiles_for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles, merges = _launches(monkeypatch, LLAMA)
    narrow, merged = compile_kernels([tiles[0], merges[0]])
    assert narrow.stack == merged.stack == 0
    assert narrow.instructions["HMMA"] and narrow.instructions["LDGSTS"]


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["16 bit", "8-bit cache", "32 bit"])
def test_forms_for_trees_compile_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles, _ = _launches(monkeypatch, SHAPES[name], ((), (0, 1, 0), (0, 0)))
    assert all(each.constants["TREES"] for each in tiles)
    _check(compile_kernels(tiles), SHAPES[name])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_every_form_compiles_for_hopper_without_spills(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles, merges = _launches(monkeypatch, SHAPES[name])
    *found, merged = compile_kernels([*tiles, *merges])
    _check(found, SHAPES[name])
    assert merged.stack == 0
