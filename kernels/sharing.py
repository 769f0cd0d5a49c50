"""When it pays on a GPU to read keys that several slots share once for all of them: a rule by what both ways cost.

`laying` asks it once a step for each run of pages that `prefixes` found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.prefixes import SharedPrefix, find_shared_prefixes
from branchpoint.kernels.tiles import TileShape

__all__ = ["H200", "Rates", "SharingRule", "find_worthwhile_prefixes"]


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device does in a second, and what launches cost.

    `memory` and `cache` are bytes, `products` floating-point operations of small attention tiles, `launches` the seconds that
    tiles of shared keys and the merge take at least.
    """

    memory: float
    cache: float
    products: float
    launches: float


H200 = Rates(memory=4.2e12, cache=7.0e12, products=3.5e14, launches=8e-6)
"""The caches' rate is rather too high than too low: sharing is then chosen too seldom, never to its cost."""

MARGIN = 0.9
"""Sharing must be estimated to take less than this part of the plain way's time: estimates err, and plain is never far off."""


@dataclass(frozen=True, slots=True)
class SharingRule:
    """Decides for slots that compute `counts` tokens each. It never takes the sharing way where the estimate is close."""

    shape: TileShape
    counts: Sequence[int]
    rates: Rates = H200

    def pays(self, members: Sequence[int], tokens: int) -> bool:
        """Whether reading `tokens` keys once for the slots in `members` is quicker than reading them for each, by a margin."""
        each = np.array([self.counts[member] for member in members]) * self.shape.group
        apart = self._seconds(tokens, self._blocks(each))
        rows = int(each.sum())
        together = self._seconds(tokens, self._blocks(np.array([rows])))
        parts = 2 * 2 * 4 * rows * self.shape.kv_heads * (self.shape.head_dim + 1)  # two float32 parts, written and read
        return together + parts / self.rates.memory + self.rates.launches < MARGIN * apart

    def _blocks(self, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> tuple[int, int]:
        """Tiles that owners of so many flat rows make, and the rows of these tiles, padding included."""
        narrow, middle, wide = (tiling.rows for tiling in self.shape.sizes)
        block = np.where(rows <= narrow, narrow, np.where(rows <= middle, middle, wide))
        tiles = -(-rows // block)
        return int(tiles.sum()), int((tiles * block).sum())

    def _seconds(self, tokens: int, blocks: tuple[int, int]) -> float:
        """Reading the keys from memory once and from caches for each further tile, or multiplying: what takes longer."""
        tiles, rows = blocks
        read = 2 * tokens * self.shape.kv_heads * self.shape.head_dim * self.shape.kv_dtype.itemsize
        multiplied = 4 * tokens * rows * self.shape.kv_heads * self.shape.head_dim
        reading = read / self.rates.memory + (tiles - 1) * read / self.rates.cache
        return max(reading, multiplied / self.rates.products)


def find_worthwhile_prefixes(table: SlotTable, shape: TileShape, rates: Rates = H200) -> list[SharedPrefix]:
    """The runs of pages that slots of `table` share and that are worth reading once, ancestors before descendants."""
    full = [start // table.page_size for start in table.starts]
    return find_shared_prefixes(table.pages, full, table.page_size, SharingRule(shape, table.counts, rates).pays)[0]
