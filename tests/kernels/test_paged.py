"""The GPU's paged attention, interpreted where there is no GPU, against the torch form over the same slots in float32."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels import attention, paged
from branchpoint.kernels.laying import plan_tiles
from branchpoint.kernels.layout import SlotTable, plan_attention
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.sharing import Rates
from branchpoint.kernels.tiles import TilePlan, TileShape
from tests.kernels.steps import random_slots, random_tree

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
EAGER = Rates(memory=1e12, cache=1.0, products=1e15, launches=0.0)
"""A device that always reads shared keys once."""


@dataclass(frozen=True)
class World:
    """A model's heads and a cache of NaN, whose slots a test fills."""

    heads: int
    kv_heads: int
    dim: int
    page_size: int
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    multiprocessors: int = 132

    @property
    def shape(self) -> TileShape:
        kv_dtype = self.kv_dtype or self.dtype
        return TileShape(
            self.heads, self.kv_heads, self.dim, self.dtype, kv_dtype, self.page_size, multiprocessors=self.multiprocessors
        )

    def own_pages(self, lengths: list[int], seed: int = 0) -> list[list[int]]:
        """Pages for slots of these lengths in no order, none shared, some unused."""
        needs = [-(-length // self.page_size) for length in lengths]
        ids = random.Random(seed).sample(range(sum(needs) + 3), sum(needs))
        return [[ids.pop() for _ in range(need)] for need in needs]

    def check(
        self,
        pages: list[list[int]],
        starts: list[int],
        counts: list[int],
        *,
        share: bool = False,
        rates: Rates = EAGER,
        trees: Sequence[tuple[int, ...]] = (),
    ) -> TilePlan:
        """Attend both ways, hold the outputs against each other; returns the plan."""
        torch.manual_seed(len(pages))
        cache, scales = self._filled(pages, [start + count for start, count in zip(starts, counts, strict=True)])
        q = torch.randn(sum(counts), self.heads + 1, self.dim).to(self.dtype)[:, :-1]  # tokens lie further apart than they need
        table = SlotTable(pages, starts, counts, self.page_size, trees)
        plan = plan_tiles(table, self.shape, DEVICE, share=share, rates=rates)
        given = [None if each is None else each.to(DEVICE) for each in (q, cache, scales)]
        out = paged.paged_attention(*given[:2], plan, self.dim**-0.5, Scratch(self.dtype, DEVICE), given[2]).cpu()
        known = plan_attention(table, torch.float32, CPU)
        wide = cache.float() if scales is None else cache.float() * scales[:, None]
        expected = attention.paged_attention(q.float(), wide, known, self.dim**-0.5, Scratch(torch.float32, CPU))
        assert out.dtype == self.dtype
        torch.testing.assert_close(out.float(), expected, atol=TOLERANCE[self.dtype], rtol=TOLERANCE[self.dtype])
        return plan

    def _filled(self, pages: list[list[int]], lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        places = (1 + max(max(table) for table in pages)) * self.page_size
        cache = torch.full((places, 2 * self.kv_heads, self.dim), torch.nan)
        for table, length in zip(pages, lengths, strict=True):
            at = [table[i // self.page_size] * self.page_size + i % self.page_size for i in range(length)]
            fresh = torch.tensor(at)[cache[at, 0, 0].isnan()]
            cache[fresh] = torch.randn(len(fresh), 2 * self.kv_heads, self.dim)
        if self.kv_dtype is None:
            return cache.to(self.dtype), None
        scales = torch.linspace(0.01, 0.02, 2 * self.kv_heads)
        return (cache / scales[:, None]).clamp(-448, 448).to(self.kv_dtype), scales


def named(world: World) -> str:
    return f"{world.heads}/{world.kv_heads} heads of {world.dim}, pages of {world.page_size}"


ODD = [World(2, 2, 64, 1, torch.float16), World(9, 3, 80, 16, torch.bfloat16), World(6, 1, 96, 64, torch.float16)]
MORE = [
    World(heads * kv_heads, kv_heads, dim, page_size, dtype)
    for (heads, kv_heads), dim, page_size, dtype in [
        ((1, 4), 64, 1, torch.float32),
        ((1, 2), 64, 3, torch.bfloat16),
        ((2, 2), 128, 64, torch.float32),
        ((8, 1), 128, 16, torch.bfloat16),
        ((7, 2), 128, 1, torch.float16),
        ((5, 1), 256, 16, torch.bfloat16),
        ((2, 1), 256, 64, torch.float32),
        ((3, 1), 256, 1, torch.float16),
        ((7, 1), 16, 16, torch.float32),
        ((4, 1), 80, 1, torch.float16),
        ((2, 1), 80, 64, torch.float32),
        ((8, 1), 96, 16, torch.float32),
        ((1, 1), 96, 1, torch.bfloat16),
        ((6, 1), 64, 64, torch.float16),
        ((8, 2), 64, 16, torch.bfloat16),
    ]
]


@pytest.mark.parametrize("world", [*ODD, *(pytest.param(each, marks=pytest.mark.slow) for each in MORE)], ids=named)
def test_prefill_decode_and_drafts_in_one_step(world: World) -> None:
    starts, counts = [0, 130, 63, 37, 0], [20, 21, 1, 3, 1]
    world.check(world.own_pages([s + c for s, c in zip(starts, counts, strict=True)]), starts, counts)


@pytest.mark.parametrize("world", [World(2, 2, 64, 1, torch.float16), World(4, 1, 16, 16, multiprocessors=64)], ids=named)
def test_guesses_of_a_tree_see_those_that_they_stand_behind(world: World) -> None:
    """Narrow and wide tiles, whole and split contexts, prefixes that are shared, slots without a tree beside them."""
    rng = random.Random(world.page_size)
    starts, counts = [300, 130, 0, 320], [8, 45, 3, 1]
    trees = [random_tree(rng, count) for count in (7, 44, 0, 0)]
    pages = world.own_pages([s + c for s, c in zip(starts, counts, strict=True)])
    pages[1][: 128 // world.page_size] = pages[0][: 128 // world.page_size]
    plan = world.check(pages, starts, counts, share=True, trees=trees)
    assert len(plan.hidden) and not len(world.check(pages, starts, counts).hidden)


def test_a_long_context_is_split_and_merged() -> None:
    world = World(8, 2, 64, 16, torch.bfloat16, multiprocessors=8)
    plan = world.check(world.own_pages([900, 40, 513]), [899, 39, 512], [1, 1, 1])
    assert len(plan.merges), "the long ones are split"
    assert plan.launches[0].count.item() >= 3 + 1 + 2


def test_drafts_behind_a_split_context_see_no_further_than_they_may() -> None:
    """The last stretch may begin behind what the first rows of a slot see."""
    world = World(2, 1, 64, 1, multiprocessors=64)
    plan = world.check(world.own_pages([516, 451]), [508, 448], [8, 3])
    stretches = plan.launches[0].tiles[: int(plan.launches[0].count)]
    assert (stretches[:, 7] >= 0).all()


def test_a_chunk_over_a_long_prefix_is_split_where_tiles_are_few() -> None:
    world = World(4, 1, 16, 16)
    plan = world.check(world.own_pages([800]), [780], [20])
    assert len(plan.merges)
    assert plan.launches[-1].tiling.rows > 16


def _forks(world: World, trunk: int, branch: int) -> tuple[list[list[int]], list[int], list[int]]:
    """Slots whose pages are a tree: all share a trunk, halves share a branch; single tokens, drafts and chunks."""
    size = world.page_size
    ids = iter(random.Random(size).sample(range(900), 900))
    stem = [next(ids) for _ in range(trunk // size)]
    branches = [[next(ids) for _ in range(branch // size)] for _ in range(2)]
    pages, starts, counts = [], [], []
    for slot in (3, 0, 5, 2, 4, 1):
        counts.append([1, 3, 10][slot // 2])
        starts.append((trunk + branch) // size * size + slot)
        own = -(-(slot + counts[-1]) // size)
        pages.append(stem + branches[slot % 2] + [next(ids) for _ in range(own)])
    return [*pages, [next(ids) for _ in range(3)]], [*starts, 0], [*counts, 2]


@pytest.mark.parametrize(
    "world",
    [
        World(3, 1, 64, 16, torch.float16, multiprocessors=8),
        pytest.param(World(8, 1, 32, 16, torch.bfloat16, multiprocessors=64), marks=pytest.mark.slow),
        pytest.param(World(4, 2, 128, 64), marks=pytest.mark.slow),
        pytest.param(World(3, 1, 16, 1, multiprocessors=16), marks=pytest.mark.slow),
    ],
    ids=named,
)
def test_keys_that_slots_share_at_two_depths_are_read_once(world: World) -> None:
    pages, starts, counts = _forks(world, trunk=320, branch=128)
    shared = world.check(pages, starts, counts, share=True)
    apart = world.check(pages, starts, counts, share=False)
    assert len(shared.merges) and _keys(shared) < 0.6 * _keys(apart)


def _keys(plan: TilePlan) -> int:
    """Keys that all tiles together read."""
    tiles = [launch.tiles[: int(launch.count)] for launch in plan.launches]
    return sum(int((each[:, 6] - each[:, 4]).sum()) for each in tiles)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_steps(seed: int) -> None:
    rng = random.Random(seed)
    group, kv_heads, dtype = rng.randint(1, 8), rng.choice([1, 2]), rng.choice([torch.float32, torch.float16, torch.bfloat16])
    world = World(
        group * kv_heads,
        kv_heads,
        rng.choice([16, 64, 80]),
        rng.choice([1, 5, 16, 64]),
        dtype,
        multiprocessors=rng.choice([8, 132]),
    )
    table = random_slots(rng, world.page_size, most=6, depth=700, longest=50)
    world.check([list(pages) for pages in table.pages], list(table.starts), list(table.counts), share=rng.random() < 0.7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
def test_an_8_bit_cache_is_read_with_its_scales(dtype: torch.dtype) -> None:
    world = World(4, 2, 64, 16, dtype, torch.float8_e4m3fn, multiprocessors=4)
    starts, counts = [0, 130, 63, 600], [20, 3, 1, 1]
    world.check(world.own_pages([s + c for s, c in zip(starts, counts, strict=True)]), starts, counts)


def test_what_does_not_fit_is_refused() -> None:
    world = World(4, 2, 16, 16)
    plan = plan_tiles(SlotTable([[0]], [0], [1], 16), world.shape, CPU)
    scratch, cache, q = Scratch(torch.float32, CPU), torch.zeros(16, 4, 16), torch.zeros(1, 4, 16)
    for queries, kv, scales in (
        (q.half(), cache, None),
        (q[:, :3], cache, None),
        (q, cache[:, ::2], None),
        (q, cache, torch.ones(4)),
        (q, cache.to(torch.float8_e4m3fn), None),
        (q, cache.to(torch.float8_e4m3fn), torch.ones(2)),
        (q[:, :, :8], cache, None),
    ):
        with pytest.raises(ValueError, match="got"):
            paged.paged_attention(queries, kv, plan, 1.0, scratch, scales)
