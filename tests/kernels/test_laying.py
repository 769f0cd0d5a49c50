"""How steps are cut into tiles: every row meets each key it may see exactly once, and parts never lie on one another."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from branchpoint.kernels.laying import lay_tiles, plan_tiles
from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.prefixes import SharedPrefix
from branchpoint.kernels.sharing import H200, Rates, SharingRule, find_worthwhile_prefixes
from branchpoint.kernels.tiles import TilePlan, TileShape
from branchpoint.kernels.tiling import extra_tiles
from tests.kernels.steps import random_slots

CPU = torch.device("cpu")
LLAMA = TileShape(32, 8, 128, torch.bfloat16, torch.bfloat16, 16)
EAGER = Rates(memory=1e12, cache=1.0, products=1e15, launches=0.0)


def _check(plan: TilePlan, table: SlotTable, shape: TileShape) -> None:
    rows = [
        (slot, at)
        for slot, (start, n) in enumerate(zip(table.starts, table.counts, strict=True))
        for at in range(start, start + n)
    ]
    seen = {row: np.zeros(rows[row][1] + 1, np.int64) for row in range(len(rows))}
    written: dict[int, list[int]] = {row: [] for row in seen}
    for launch in plan.launches:
        for tile in launch.tiles[: int(launch.count)].tolist():
            where, first, last, begins_at, begin, free, end, ordinal = tile
            assert 0 <= first < last <= first + launch.tiling.rows and begin <= end and free <= end
            for flat in range(first, last, shape.group):
                row = int(plan.rows[where + flat // shape.group])
                slot, position = rows[row]
                assert int(plan.positions[row]) == position and free <= max(position + 1, begin)
                held = plan.pages[begins_at + begin // shape.page_size : begins_at + -(-end // shape.page_size)].tolist()
                assert held == list(table.pages[slot][begin // shape.page_size : -(-end // shape.page_size)])
                seen[row][begin:end] += 1
                written[row].append(ordinal)
    merges = dict(plan.merges[: int(plan.num_merges)].tolist())
    places = list[int]()
    for row, times in seen.items():
        assert (times == 1).all(), f"row {row} of {rows[row]} sees keys {np.flatnonzero(times != 1)[:5]} not once"
        count = merges.get(row, 0)
        assert sorted(written[row]) == (list(range(count)) if count else [-1])
        places += [int(plan.bases[row]) + part for part in range(count)]
    assert len(set(places)) == len(places) and all(place < plan.num_partials for place in places)


@pytest.mark.parametrize("seed", range(12))
def test_every_row_meets_every_key_once(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice([1, 16, 64])
    shape = replace(LLAMA, heads=rng.choice([8, 32]), page_size=size, multiprocessors=rng.choice([16, 132]))
    table = random_slots(rng, size)
    _check(plan_tiles(table, shape, CPU, share=rng.random() < 0.7, rates=rng.choice([EAGER, H200])), table, shape)


def test_decoding_many_slots_comes_to_two_shapes() -> None:
    """Captured graphs are few only if the number of tiles that there is room for hardly depends on contexts."""
    rng = random.Random(0)
    keys = set()
    for _ in range(60):
        starts = [rng.choice([10, 500, 3000, 20000]) + rng.randrange(300) for _ in range(rng.randint(33, 64))]
        table = SlotTable([()] * len(starts), starts, [1] * len(starts), 16)
        tiles = lay_tiles(table, np.zeros(len(starts), np.int64), LLAMA, [])
        count = int(tiles.sections[0][0, 0])
        assert count <= 64 + extra_tiles(0, 8, 132)
        keys.add(tiles.key)
    assert len(keys) <= 2


def test_sharing_is_chosen_where_it_saves() -> None:
    def pays(slots: int, tokens: int, count: int = 1) -> bool:
        return SharingRule(LLAMA, [count] * slots).pays(range(slots), tokens)

    assert pays(256, 2048) and pays(32, 1024) and pays(8, 8192)
    assert not pays(2, 256) and not pays(2, 64) and not pays(8, 128), "launches cost more than is saved"
    assert not pays(8, 2048, count=512), "chunks are bound by arithmetic, which sharing doesn't lessen"
    assert pays(64, 2048, count=5), "drafts"


def test_a_trunk_and_its_branches_are_found_from_the_root() -> None:
    trunk, branches = list(range(200)), [list(range(1000 * n, 1000 * n + 200)) for n in (1, 2)]
    pages = [trunk + branches[slot % 2] + [9000 + slot] for slot in range(32)]
    table = SlotTable(pages, [6400] * 32, [1] * 32, 16)
    found = find_worthwhile_prefixes(table, LLAMA)
    assert found[0] == SharedPrefix(tuple(range(32)), 0, 200)
    assert {prefix.members[0] for prefix in found[1:]} == {0, 1} and all(prefix.first == 200 for prefix in found[1:])
