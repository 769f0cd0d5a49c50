"""Cuts one step's attention into tiles for a GPU, once a step on the CPU: from page tables to `tiles.HostTiles`.

A slot with few rows makes one tile, a long prefill several; keys that slots share make tiles of all their rows; where tiles are
few, their keys are split. All in arrays: a step of 256 slots must not cost the time it takes to run it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.prefixes import SharedPrefix
from branchpoint.kernels.sharing import H200, Rates, find_worthwhile_prefixes
from branchpoint.kernels.tiles import TILE_FIELDS, HostTiles, TilePlan, TileShape
from branchpoint.kernels.tiling import NUM_KINDS, extra_tiles, key_stretch
from branchpoint.kernels.tree import WORDS, hidden_words

__all__ = ["lay_tiles", "plan_tiles"]

ALIGNMENT = 64
"""Keys at whose multiples the stretches of a tile begin, counted from its first."""

LEAST_PARTIALS = 1024
"""Rows of partial results that there is always room for, so that most plans have that number in common."""

MOST_GRAPHED = 1024
"""Rows up to which a plan that merges has room to merge them all: more graphs in common are worth some idle programs."""

Ints = NDArray[np.int64]


def plan_tiles(table: SlotTable, shape: TileShape, device: torch.device, *, share: bool = True, rates: Rates = H200) -> TilePlan:
    """`layout.plan_attention` for a GPU: the tiles of the slots in `table`, sent to `device` with their page tables.

    With `share`, keys that slots have in common are read once where the device's `rates` say that this pays.
    """
    lengths = np.array([len(pages) for pages in table.pages], np.int64)
    pages = torch.tensor([page for each in table.pages for page in each], dtype=torch.int32, device=device)
    shared = find_worthwhile_prefixes(table, shape, rates) if share else []
    tiles = lay_tiles(table, np.cumsum(lengths) - lengths, shape, shared)
    return tiles.on(torch.from_numpy(tiles.numbers()).to(device), pages)


def lay_tiles(table: SlotTable, tables: Ints, shape: TileShape, shared: Sequence[SharedPrefix]) -> HostTiles:
    """The tiles of a step of the slots in `table`, which have their page tables at `tables` [slots].

    The prefixes in `shared`, ancestors before their descendants, are read once for all their members.
    """
    owners = _Owners(table, tables, shape, shared)
    kinds = [owners.tiles(kind) for kind in range(NUM_KINDS)]
    ordinals, totals = owners.parts()
    merged = np.repeat(totals, owners.counts)  # by row: how many parts it has, 0 for one that is written at once
    merges = np.stack((np.arange(len(merged)), merged), 1)[merged > 0]
    sections = [_split(tiles, owners.splits, ordinals) for tiles in kinds]
    hidden = hidden_words(table.counts, table.trees) if table.trees else np.empty((0, WORDS), np.int32)
    return _packed(owners, sections, merged, merges, len(kinds[0]), hidden)


class _Owners:
    """What keys are read for: slots, then shared prefixes, each with all rows that read them. Arrays are over these owners.

    A slot owns the keys behind its prefixes, and those only up to each row's own position.
    """

    def __init__(self, table: SlotTable, tables: Ints, shape: TileShape, shared: Sequence[SharedPrefix]) -> None:
        starts, counts = np.asarray(table.starts, np.int64), np.asarray(table.counts, np.int64)
        self.shape, self.shared, self.starts, self.counts = shape, shared, starts, counts
        self.certain = starts + counts - (np.array([len(tree) for tree in table.trees], np.int64) if table.trees else 0)
        size, num_rows = shape.page_size, int(counts.sum())
        begins, first_rows = np.zeros_like(starts), np.cumsum(counts) - counts
        lists = [np.arange(num_rows)]
        for prefix in shared:
            members = np.array(prefix.members)
            begins[members] = prefix.last * size
            lists.append(_ranges(first_rows[members], counts[members]))
        lengths = np.array([len(each) for each in lists], np.int64)
        leaders = [prefix.members[0] for prefix in shared]
        self.positions = np.repeat(starts - first_rows, counts) + lists[0]
        self.rows = np.concatenate(lists)
        self.row_lists = np.concatenate((first_rows, np.cumsum(lengths)[:-1]))
        self.flat = np.concatenate((counts, lengths[1:])) * shape.group
        self.tables = np.concatenate((tables, tables[leaders]))
        self.begins = np.concatenate((begins, np.array([prefix.first * size for prefix in shared], np.int64)))
        self.ends = np.concatenate((starts + counts, np.array([prefix.last * size for prefix in shared], np.int64)))
        self.splits = np.ones_like(self.flat)
        sizes = shape.sizes
        self.kinds = (self.flat > sizes[0].rows).astype(np.int64) + (self.flat > sizes[1].rows)

    def tiles(self, kind: int) -> Ints:
        """The tiles [N, TILE_FIELDS] of one size before their keys are split, the owner in the last column; sets `splits`."""
        owners = np.flatnonzero(self.kinds == kind)
        if not len(owners):
            return np.empty((0, TILE_FIELDS), np.int64)
        block = self.shape.sizes[kind].rows
        each = -(-self.flat[owners] // block)
        owner = np.repeat(owners, each)
        flat_begin = _ranges(np.zeros_like(each), each) * block
        flat_end = np.minimum(flat_begin + block, self.flat[owner])
        free, end = self.ends[owner], self.ends[owner]
        own = owner < len(self.starts)
        ahead = self.starts[owner[own]] + 1
        free[own] = np.minimum(ahead + flat_begin[own] // self.shape.group, self.certain[owner[own]])
        end[own] = ahead + (flat_end[own] - 1) // self.shape.group
        begin = self.begins[owner]
        stretch = key_stretch(kind, int((end - begin).sum()), len(owner), self.shape.kv_heads, self.shape.multiprocessors)
        if stretch is not None:
            lengths = self.ends[owners] - self.begins[owners]
            self.splits[owners] = np.maximum(1, (2 * lengths + stretch) // (2 * stretch))
        fields = (self.row_lists[owner], flat_begin, flat_end, self.tables[owner], begin, free, end, owner)
        out = np.empty((len(owner), TILE_FIELDS), np.int64)
        for column, field in enumerate(fields):
            out[:, column] = field
        return out

    def parts(self) -> tuple[Ints, Ints]:
        """For each owner the number of its first part among those of its rows, -1 where its rows have that part only; and for
        each slot how many parts its rows have, 0 where that is one.
        """
        used = np.zeros_like(self.counts)
        firsts = np.empty_like(self.flat)
        for number, prefix in enumerate(self.shared, len(used)):
            firsts[number] = used[prefix.members[0]]
            used[list(prefix.members)] += self.splits[number]
        own = self.splits[: len(used)]
        alone = used + own == 1
        firsts[: len(used)] = np.where(alone, -1, used)
        return firsts, np.where(alone, 0, used + own)


def _ranges(firsts: Ints, counts: Ints) -> Ints:
    """The numbers counts[i] from firsts[i] on, one range after another."""
    offsets = np.cumsum(counts) - counts
    return np.repeat(firsts - offsets, counts) + np.arange(int(counts.sum()))


def _split(tiles: Ints, splits: Ints, ordinals: Ints) -> Ints:
    """The tiles with their keys split as their owners' are, part numbers in place of owners, those with most keys first."""
    if not len(tiles):
        return tiles
    times = splits[tiles[:, 7]]
    if len(tiles) == int(times.sum()):
        out = tiles
        out[:, 7] = ordinals[out[:, 7]]
    else:
        part = _ranges(np.zeros_like(times), times)
        stretch = np.repeat(-(-(tiles[:, 6] - tiles[:, 4]) // (times * ALIGNMENT)) * ALIGNMENT, times)
        out = np.repeat(tiles, times, axis=0)
        last = out[:, 6].copy()
        out[:, 4] = np.minimum(out[:, 4] + part * stretch, last)
        out[:, 6] = np.minimum(out[:, 4] + stretch, last)
        out[:, 5] = np.minimum(out[:, 5], out[:, 6])
        first = ordinals[out[:, 7]]
        out[:, 7] = np.where(first < 0, -1, first + part)
    return out[np.argsort(out[:, 4] - out[:, 6], kind="stable")]


def _packed(
    owners: _Owners, sections: list[Ints], merged: Ints, merges: Ints, unsplit: int, hidden: NDArray[np.int32]
) -> HostTiles:
    """All numbers of the plan in sections whose places depend on the key alone."""
    shape = owners.shape
    num_rows = _power_of_two(len(merged))
    num_listed = num_rows if not owners.shared else _power_of_two(len(owners.rows))
    capacities = [_power_of_two(len(tiles)) if len(tiles) else 0 for tiles in sections]
    if len(sections[0]) > unsplit:  # what decoding one number of slots can come to is two capacities, split or not
        capacities[0] = _power_of_two(unsplit) + extra_tiles(0, shape.kv_heads, shape.multiprocessors)
    num_merges = _power_of_two(len(merges)) if len(merges) else 0
    if num_merges and num_rows <= MOST_GRAPHED:
        num_merges = num_rows
    num_partials = max(LEAST_PARTIALS, _power_of_two(int(merged.sum()))) if len(merges) else 0
    counts = np.zeros((NUM_KINDS + 1, 4), np.int64)
    counts[:, 0] = [*map(len, sections), len(merges)]
    bases = np.cumsum(merged) - merged
    num_hidden = WORDS * num_rows if len(hidden) else 0
    lengths = [counts.size, num_listed, num_rows, num_rows, num_hidden, 2 * num_merges]
    offsets = np.cumsum([0, *lengths, *(TILE_FIELDS * each for each in capacities)])
    held = (counts, owners.rows, owners.positions, bases, hidden, merges, *sections)
    key = (num_rows, num_listed, num_hidden, *capacities, num_merges, num_partials)
    return HostTiles(key, tuple(each.astype(np.int32) for each in held), tuple(offsets[:-1].tolist()), int(offsets[-1]), shape)


def _power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`, and at least 16: so many numbers begin at a multiple of 64 bytes."""
    return max(16, 1 << (value - 1).bit_length())
