"""What a GPU's attention of one step works by: tiles, each a block of query rows over a stretch of keys.

`laying` makes a step's `HostTiles` from page tables; sent to the device in one piece they are a `TilePlan`, which `paged` runs by
in every layer. Plans with equal `key` lie at the same places of the buffer, so that a captured graph of one serves the other.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from branchpoint.kernels.tiling import Tiling, tilings

__all__ = ["TILE_FIELDS", "HostTiles", "Launch", "TilePlan", "TileShape"]

TILE_FIELDS = 8
"""Numbers of a tile: where its list of rows begins, its first and last of rows times heads, where its page table begins, its
first key, the first key that not all rows see, its last key (all ends exclusive), and which part of its rows it is, or -1."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """What planning must know of the model, the cache and the device, by default a Hopper GPU.

    `shared_memory` is what one program may have, in bytes.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    page_size: int
    multiprocessors: int = 132
    shared_memory: int = 227 * 1024

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def sizes(self) -> tuple[Tiling, Tiling, Tiling]:
        """Narrow, middle and wide tiles."""
        return tilings(self.head_dim, self.dtype, self.shared_memory)


@dataclass(frozen=True, slots=True)
class Launch:
    """Tiles int32 [capacity, TILE_FIELDS] of one size, of which count int32 [1] are there."""

    tiling: Tiling
    tiles: Tensor
    count: Tensor


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A step's tiles on the device; all tensors are int32. See `TILE_FIELDS` for what a tile says.

    rows [N] are the lists of query rows, positions and bases [T] each row's position and where its partial results begin, merges
    [M, 2] rows and how many partial results they have (none where M is 0), pages the page tables one after another. hidden
    [T, WORDS] are the bits of `tree.hidden_words`, none of them where no slot has a tree.
    """

    key: tuple[int, ...]
    pages: Tensor
    rows: Tensor
    positions: Tensor
    bases: Tensor
    hidden: Tensor
    merges: Tensor
    num_merges: Tensor
    launches: tuple[Launch, ...]
    num_partials: int
    page_size: int


@dataclass(frozen=True, slots=True)
class HostTiles:
    """The same before it is sent: `sections` of int32 numbers at `offsets` of a buffer of `size`; `key` says all about where."""

    key: tuple[int, ...]
    sections: tuple[NDArray[np.int32], ...]
    offsets: tuple[int, ...]
    size: int
    shape: TileShape

    def numbers(self) -> NDArray[np.int32]:
        """What is to be sent, [size]; what lies between sections may be anything."""
        out = np.empty(self.size, np.int32)
        for section, offset in zip(self.sections, self.offsets, strict=True):
            out[offset : offset + section.size] = section.reshape(-1)
        return out

    def on(self, buffer: Tensor, pages: Tensor) -> TilePlan:
        """The plan whose numbers are in `buffer` int32 [size], over page tables int32 `pages`."""
        num_rows, num_listed, num_hidden, *capacities, num_merges, num_partials = self.key
        counts, rows, positions, bases, hidden, merges, *tiles = (buffer[offset:] for offset in self.offsets)
        launches = tuple(
            Launch(tiling, part[: capacity * TILE_FIELDS].view(capacity, TILE_FIELDS), counts[4 * number : 4 * number + 1])
            for number, (tiling, part, capacity) in enumerate(zip(self.shape.sizes, tiles, capacities, strict=True))
            if capacity
        )
        return TilePlan(
            self.key,
            pages,
            rows[:num_listed],
            positions[:num_rows],
            bases[:num_rows],
            hidden[:num_hidden],
            merges[: 2 * num_merges].view(num_merges, 2),
            counts[12:13],
            launches,
            num_partials,
            self.shape.page_size,
        )
