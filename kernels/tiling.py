"""Which blocks a GPU's attention works in: sizes of tiles by how many rows share keys, and when a row's keys are split.

`laying` cuts a step by it, `paged` launches by it. Sizes were chosen for Hopper by what its compiler reports of registers and
shared memory (tests/kernels/test_compiled.py), so that each multiprocessor has 64 KB or more of keys and values on their way.
"""

from dataclasses import dataclass

import torch

__all__ = ["NARROW", "NUM_KINDS", "Tiling", "extra_tiles", "key_stretch", "tilings"]

NARROW = 16
"""Rows of the smallest tile: single tokens and short drafts, bound by memory."""

LEAST_NARROW = 256
LEAST_WIDE = 512
"""Keys below which splitting a tile's keys costs more in writing and merging its parts than it gains."""

AMPLE = 163 * 1024
LARGE = 225 * 1024
"""Bytes of shared memory from which there are larger tilings, and a third block of keys: an A100 has the one, Hopper both."""

PROGRAMS_EACH = (4, 2)
"""Programs for each multiprocessor that splitting aims at, for narrow tiles, of which three run at once, and for larger ones."""

NUM_KINDS = 3


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tile of `rows` query rows takes `keys` keys a time, by `warps` warps, loads `stages` - 1 steps ahead.

    Narrow tiles have room for the blocks of so many steps, larger ones for one more: the tensor cores read from there.
    """

    rows: int
    keys: int
    warps: int
    stages: int


def tilings(head_dim: int, dtype: torch.dtype, shared_memory: int) -> tuple[Tiling, Tiling, Tiling]:
    """The narrow, the middle and the wide tiling for heads of `head_dim` and queries of `dtype`, on a device where a program may
    have so many bytes of shared memory.
    """
    if dtype == torch.float32:  # exact products run outside the tensor cores: small blocks, nothing to gain by large ones
        return Tiling(NARROW, 16, 8, 3), Tiling(32, 16, 8, 3), Tiling(32, 16, 8, 3)
    if shared_memory < AMPLE:
        block = Tiling(64, 64, 4, 2) if head_dim <= 128 else Tiling(64, 32, 8, 2)
        return Tiling(NARROW, block.keys // 2, 4, 3), block, block
    if head_dim > 128:
        return Tiling(NARROW, 32, 4, 3), Tiling(64, 32, 8, 3), Tiling(64, 32, 8, 3)
    return Tiling(NARROW, 64, 4, 3), Tiling(64, 64, 4, 3), Tiling(128, 128, 8, 3 if shared_memory >= LARGE else 2)


def key_stretch(kind: int, total: int, tiles: int, kv_heads: int, multiprocessors: int) -> int | None:
    """Into stretches of about how many keys tiles of this kind are split, `total` keys of `tiles` tiles together; None: not.

    Narrow tiles split so are at most `extra_tiles` more. The others are bound by arithmetic and leave much to merge, so they are
    split only where they would leave multiprocessors idle.
    """
    if kind and tiles * kv_heads >= multiprocessors:
        return None
    return max(LEAST_WIDE if kind else LEAST_NARROW, total // extra_tiles(kind, kv_heads, multiprocessors) + 1)


def extra_tiles(kind: int, kv_heads: int, multiprocessors: int) -> int:
    """How many more tiles of a kind there may be for their keys being split: a multiple of 16."""
    return max(16, PROGRAMS_EACH[min(kind, 1)] * multiprocessors // kv_heads // 16 * 16)
