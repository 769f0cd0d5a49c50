"""Paged attention against the same attention written densely, one slot at a time."""

import random
from collections.abc import Sequence

import pytest
import torch

from branchpoint.kernels.attention import attend, paged_attention, write_kv
from branchpoint.kernels.layout import SlotTable, plan_attention
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.shared_prefix import merge_parts
from tests.kernels.steps import random_tree, way_to

CPU = torch.device("cpu")


def _dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, scale: float, tree: tuple[int, ...] = ()
) -> torch.Tensor:
    """q [T, Hq, D] at positions start.. over k, v [start + T, Hkv, D], in float64; the last are guesses of a tree."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("thd,shd->hts", q.double(), keys) * scale
    positions = torch.arange(start, start + len(q))
    scores.masked_fill_(torch.arange(len(k)) > positions[:, None], -torch.inf)
    for guess in range(len(tree)):
        others = [other - len(tree) for other in range(len(tree)) if other not in way_to(tree, guess)]
        scores[:, guess - len(tree), others] = -torch.inf
    return torch.einsum("hts,shd->thd", scores.softmax(-1), values)


class _World:
    """A cache with garbage in it, and slots whose pages are chosen by the test."""

    def __init__(self, page_size: int, heads: int, kv_heads: int, dim: int, num_pages: int) -> None:
        self.page_size, self.heads, self.dim = page_size, heads, dim
        self.cache = torch.full((num_pages * page_size, 2 * kv_heads, dim), torch.nan)
        self.keys, self.values = self.cache.chunk(2, 1)
        self.scratch = Scratch(torch.float32, CPU)

    def check(
        self,
        pages: list[list[int]],
        starts: list[int],
        counts: list[int],
        *,
        share: bool = True,
        trees: Sequence[tuple[int, ...]] = (),
    ) -> torch.Tensor:
        """Fill the slots' pages, attend, compare with the dense form; returns the outputs."""
        for table, start, count in zip(pages, starts, counts, strict=True):
            at = self._at(table, start + count)
            fresh = at[self.keys[at, 0, 0].isnan()]
            write_kv(torch.randn(len(fresh), *self.cache.shape[1:]), self.cache, fresh)
        q = torch.randn(sum(counts), self.heads, self.dim)
        plan = plan_attention(SlotTable(pages, starts, counts, self.page_size, trees), torch.float32, CPU, share=share)
        out = paged_attention(q, self.cache, plan, self.dim**-0.5, self.scratch)
        row = 0
        for table, start, count, tree in zip(pages, starts, counts, trees or [()] * len(pages), strict=True):
            at = self._at(table, start + count)
            expected = _dense(q[row : row + count], self.keys[at], self.values[at], start, self.dim**-0.5, tree)
            torch.testing.assert_close(out[row : row + count], expected.float(), atol=2e-5, rtol=2e-5)
            row += count
        return out

    def _at(self, table: list[int], length: int) -> torch.Tensor:
        return torch.tensor([table[i // self.page_size] * self.page_size + i % self.page_size for i in range(length)])


def _own_pages(rng: random.Random, lengths: list[int], page_size: int, *, consecutive: bool) -> tuple[list[list[int]], int]:
    """Pages for slots of these lengths, none shared, some pages between them unused; and the size of the pool."""
    needs = [-(-length // page_size) for length in lengths]
    total = sum(needs) + len(needs) + 3
    ids = list(range(total))
    if not consecutive:
        rng.shuffle(ids)
    tables, at = [], 0
    for need in needs:
        at += 1
        tables.append(ids[at : at + need])
        at += need
    return tables, total


@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize("consecutive", [True, False])
def test_ragged_slots_attend_as_if_alone(page_size: int, heads: int, kv_heads: int, consecutive: bool) -> None:
    rng = random.Random(f"{page_size} {heads} {consecutive}")
    for _ in range(4):
        counts = [rng.choice([1, 1, 1, 2, 5, 8, 33, 70]) for _ in range(rng.randint(1, 7))]
        starts = [rng.choice([0, 0, 1, 15, 16, 40, 200, 300]) for _ in counts]
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        pages, total = _own_pages(rng, lengths, page_size, consecutive=consecutive)
        _World(page_size, heads, kv_heads, 16, total).check(pages, starts, counts)


@pytest.mark.parametrize("page_size", [1, 16])
def test_guesses_of_a_tree_see_those_that_they_stand_behind(page_size: int) -> None:
    rng = random.Random(page_size)
    for _ in range(8):
        counts = [rng.choice([1, 3, 5, 8, 33, 70]) for _ in range(rng.randint(1, 5))]
        trees = [random_tree(rng, rng.randrange(min(count, 65))) for count in counts]
        starts = [rng.choice([0, 1, 15, 16, 200]) for _ in counts]
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        pages, total = _own_pages(rng, lengths, page_size, consecutive=rng.random() < 0.5)
        _World(page_size, 6, 2, 16, total).check(pages, starts, counts, trees=trees)


def test_guesses_behind_a_long_chunk_need_no_mask_for_all_of_it() -> None:
    table = SlotTable([list(range(40))], [100], [500], 16, [(0, 1, 1, 0)])
    parts = plan_attention(table, torch.float32, CPU).parts
    assert [part.mask.shape for part in parts if part.mask is not None] == [(1, 1, 4, 600)]


@pytest.mark.parametrize("count", [1, 4, 100])
def test_single_slot_of_every_kind_is_exact(count: int) -> None:
    for start in (0, 31, 300):
        pages, total = _own_pages(random.Random(1), [start + count], 16, consecutive=count != 4)
        _World(16, 6, 2, 32, total).check(pages, [start], [count])


def test_pages_with_room_left_over_are_ignored() -> None:
    world = _World(16, 4, 2, 16, 20)
    world.check([[3, 4, 5, 6], [9, 8, 7]], [2, 17], [1, 1])


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_shared_prefixes_change_nothing(page_size: int) -> None:
    """A tree of forks: all share a trunk, halves share a branch, and decode, verify and prefill slots mix."""
    trunk, branch = 300 // page_size, 150 // page_size
    ids = iter(random.Random(page_size).sample(range(3000), 3000))
    shared = [next(ids) for _ in range(trunk)]
    branches = [[next(ids) for _ in range(branch)] for _ in range(2)]
    pages, starts, counts = [], [], []
    for slot in range(8):
        counts.append([1, 1, 3, 40][slot % 4])
        starts.append((trunk + branch) * page_size + slot)
        own = -(-(slot + counts[-1]) // page_size)
        pages.append(shared + branches[slot // 4] + [next(ids) for _ in range(own)])
    world = _World(page_size, 9, 3, 16, 3000)
    plan = plan_attention(SlotTable(pages, starts, counts, page_size), torch.float32, CPU)
    assert (
        sum(
            part.merge and len(part.rows if isinstance(part.rows, torch.Tensor) else range(part.rows.stop)) > 3
            for part in plan.parts
        )
        >= 3
    )
    torch.manual_seed(0)
    first = world.check(pages, starts, counts)
    torch.manual_seed(0)
    second = world.check(pages, starts, counts, share=False)
    assert first.shape == second.shape


def test_a_slots_output_hardly_depends_on_its_batch() -> None:
    world = _World(16, 4, 2, 16, 60)
    pages, starts, counts = [[1, 2, 3], [5, 6], [9, 10]], [40, 20, 7], [1, 1, 2]
    together = world.check(pages, starts, counts)
    q = torch.randn(1, 4, 16)
    alone = plan_attention(SlotTable(pages[:1], starts[:1], counts[:1], 16), torch.float32, CPU)
    batch = plan_attention(SlotTable(pages, starts, counts, 16), torch.float32, CPU)
    row = paged_attention(q, world.cache, alone, 0.25, world.scratch)
    rows = paged_attention(torch.cat((q, together[1:])), world.cache, batch, 0.25, world.scratch)
    torch.testing.assert_close(rows[:1], row, atol=1e-6, rtol=1e-6)


def test_the_form_by_definition_gives_the_same_sums_and_outputs() -> None:
    q, k, v = torch.randn(2, 5, 6, 16), torch.randn(2, 5, 2, 16), torch.randn(2, 5, 2, 16)
    meta = [attend(q, k, v, 0.3, causal=causal) for causal in (False, True)]
    for (out, sums), causal in zip(meta, (False, True), strict=True):
        scores = torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(3, 2)) * 0.3
        if causal:
            scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
        torch.testing.assert_close(sums, scores.logsumexp(-1).transpose(1, 2), atol=1e-5, rtol=1e-5)
        expected = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v.repeat_interleave(3, 2))
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def test_merging_two_halves_gives_the_whole() -> None:
    q, k, v = torch.randn(1, 4, 6, 16), torch.randn(1, 30, 2, 16), torch.randn(1, 30, 2, 16)
    whole, whole_sums = attend(q, k, v, 0.25)
    left, left_sums = attend(q, k[:, :11], v[:, :11], 0.25)
    right, right_sums = attend(q, k[:, 11:], v[:, 11:], 0.25)
    for rows in (slice(0, 4), torch.arange(4)):
        out, sums = left[0].clone(), left_sums[0].clone()
        merge_parts(out, sums, rows, right[0], right_sums[0])
        torch.testing.assert_close(out, whole[0])
        torch.testing.assert_close(sums, whole_sums[0])


def test_an_8_bit_cache_means_its_values_times_their_scales() -> None:
    rng = random.Random(3)
    pages, total = _own_pages(rng, [40, 33, 300], 16, consecutive=False)
    cache, scales = torch.randn(total * 16, 4, 16).to(torch.float8_e4m3fn), torch.tensor([0.5, 2.0, 1.0, 0.25])
    plan = plan_attention(SlotTable(pages, [39, 30, 290], [1, 3, 10], 16), torch.float32, CPU)
    q = torch.randn(14, 6, 16)
    out = paged_attention(q, cache, plan, 0.25, Scratch(torch.float8_e4m3fn, CPU), scales)
    expected = paged_attention(q, cache.float() * scales[:, None], plan, 0.25, Scratch(torch.float32, CPU))
    torch.testing.assert_close(out, expected)
