"""Paged attention on a GPU: the Triton form of `attention.paged_attention`, over the tiles that `laying` made.

One program takes one tile of query rows (the heads that share a key head, token by token) over one stretch of keys. Tiles that
hold only part of a row's keys leave it with its log-sum-exp for `merge`; a launch has room for more tiles than a step may have,
and reads their number from memory, so that a captured graph serves other steps of the same shape.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from branchpoint.kernels.merge import merge_partials
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.tiles import TILE_FIELDS, Launch, TilePlan
from branchpoint.kernels.tiling import NARROW

__all__ = ["paged_attention"]

LOG2_E = 1.4426950408889634


@triton.jit
def _pages(table: tl.tensor, first: tl.tensor, end: tl.tensor, PAGE: tl.constexpr, BLOCK_N: tl.constexpr) -> tl.tensor:
    """The pages of the keys from `first` on, for a block of them.

    They are looked up while the block before is attended to. Looked up together with their keys, they would take half of the
    compiler's stages, and it would load keys too late.
    """
    keys = first + tl.arange(0, BLOCK_N)
    return tl.load(table + keys // PAGE, mask=keys < end, other=0)


@triton.jit
def _attend_keys(
    acc: tl.tensor, best: tl.tensor, total: tl.tensor, page: tl.tensor, q: tl.tensor, cache: tl.tensor, table: tl.tensor,
    first: tl.tensor, end: tl.tensor, positions: tl.tensor, near: tl.tensor, far: tl.tensor, key_head: tl.tensor,
    scale: tl.tensor, MASKED: tl.constexpr, TREES: tl.constexpr,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The online softmax's state after the keys `first` to first + BLOCK_N - 1, each in its `page`; and the next block's pages.

    MASKED hides those at `end` or ahead of a row, with TREES also those whose bits are set: in `near` of the 32 keys up to its
    own, in `far` of the 32 before these.
    """
    later = _pages(table, first + BLOCK_N, end, PAGE, BLOCK_N)
    keys = first + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    places = page.to(tl.int64) * PAGE + keys % PAGE
    at = cache + places[:, None] * (2 * KV_HEADS * DIM) + key_head * DIM + dims[None, :]
    if MASKED:
        inside = (keys < end)[:, None] & (dims < DIM)[None, :]
        k = tl.load(at, mask=inside, other=0.0)
        v = tl.load(at + KV_HEADS * DIM, mask=inside, other=0.0)
    elif BLOCK_D != DIM:
        k = tl.load(at, mask=(dims < DIM)[None, :], other=0.0)
        v = tl.load(at + KV_HEADS * DIM, mask=(dims < DIM)[None, :], other=0.0)
    else:
        k = tl.load(at)
        v = tl.load(at + KV_HEADS * DIM)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
    if MASKED:
        seen = (keys[None, :] <= positions[:, None]) & (keys < end)[None, :]
        if TREES:
            back = positions[:, None] - keys[None, :]
            word = tl.where(back < 32, near[:, None], far[:, None])
            seen = seen & ((back >= 64) | ((word >> (back & 31) & 1) == 0))
        scores = tl.where(seen, scores, float("-inf"))
    highest = tl.maximum(best, tl.max(scores, 1) * scale)
    shift = tl.where(highest == float("-inf"), 0.0, highest) if MASKED else highest  # a row may see nothing of this block
    shares = tl.exp2(scores * scale - shift[:, None])
    kept = tl.exp2(best - shift)
    total = total * kept + tl.sum(shares, 1)
    acc = tl.dot(shares.to(q.dtype), v.to(q.dtype), acc * kept[:, None], input_precision="ieee")
    return acc, highest, total, later


@triton.jit
def _store_tile(
    out: tl.tensor, partial: tl.tensor, sums: tl.tensor, bases: tl.tensor, row: tl.tensor, head: tl.tensor, inside: tl.tensor,
    ordinal: tl.tensor, acc: tl.tensor, best: tl.tensor, total: tl.tensor, scale: tl.tensor,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """Write a tile's rows to the output, or as part `ordinal` of theirs with its log-sum-exp in powers of two."""
    dims = tl.arange(0, BLOCK_D)
    seen = total > 0  # a row may see nothing of a stretch
    total = tl.where(seen, total, 1.0)
    values = acc * (scale / total)[:, None]
    if ordinal < 0:
        at = (row * HEADS + head) * DIM
        tl.store(out + at[:, None] + dims[None, :], values.to(out.dtype.element_ty), mask=inside[:, None] & (dims < DIM)[None, :])
    else:
        slot = (tl.load(bases + row, mask=inside, other=0) + ordinal).to(tl.int64) * HEADS + head
        tl.store(partial + (slot * DIM)[:, None] + dims[None, :], values, mask=inside[:, None] & (dims < DIM)[None, :])
        tl.store(sums + slot, tl.where(seen, best + tl.log2(total), float("-inf")), mask=inside)


@triton.jit
def _tile_kernel(
    q_ptr: tl.tensor, cache_ptr: tl.tensor, out_ptr: tl.tensor, partial_ptr: tl.tensor, sums_ptr: tl.tensor,
    scales_ptr: tl.tensor, pages_ptr: tl.tensor, rows_ptr: tl.tensor, positions_ptr: tl.tensor, hidden_ptr: tl.tensor,
    bases_ptr: tl.tensor, tiles_ptr: tl.tensor, count_ptr: tl.tensor, scale: tl.tensor, q_stride: tl.tensor,
    TWO_PHASES: tl.constexpr, TREES: tl.constexpr, HAS_SCALES: tl.constexpr, TO_HALF: tl.constexpr, GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, FIELDS: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
) -> None:  # fmt: skip
    """Program tile * KV_HEADS + key head. `scale` has log2(e) in it: powers of two are what the hardware computes."""
    key_head, number = tl.program_id(0) % KV_HEADS, tl.program_id(0) // KV_HEADS
    if number >= tl.load(count_ptr):
        return
    tile = tiles_ptr + number * FIELDS
    row_list, flat_begin, flat_end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    table = pages_ptr + tl.load(tile + 3)
    begin, free_end, end, ordinal = tl.load(tile + 4), tl.load(tile + 5), tl.load(tile + 6), tl.load(tile + 7)
    flat = flat_begin + tl.arange(0, BLOCK_M)
    row = tl.load(rows_ptr + row_list + flat // GROUP, mask=flat < flat_end, other=0).to(tl.int64)
    position = tl.load(positions_ptr + row, mask=flat < flat_end, other=0)
    near = tl.load(hidden_ptr + 2 * row, mask=flat < flat_end, other=0) if TREES else position
    far = tl.load(hidden_ptr + 2 * row + 1, mask=flat < flat_end, other=0) if TREES else position
    head = key_head * GROUP + flat % GROUP
    dims = tl.arange(0, BLOCK_D)
    inside = (flat < flat_end)[:, None] & (dims < DIM)[None, :]
    q = tl.load(q_ptr + (row * q_stride + head * DIM)[:, None] + dims[None, :], mask=inside, other=0.0)
    if TO_HALF:
        q = tl.clamp(q.to(tl.float32), -65504.0, 65504.0).to(tl.float16)
    scale *= tl.load(scales_ptr + key_head) if HAS_SCALES else 1.0
    best, total = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    masked_from = begin
    if TWO_PHASES:  # keys that all rows see need no mask
        masked_from += tl.maximum(free_end - begin, 0) // BLOCK_N * BLOCK_N
        page = _pages(table, begin, end, PAGE, BLOCK_N)
        for first in range(begin, masked_from, BLOCK_N):
            acc, best, total, page = _attend_keys(
                acc, best, total, page, q, cache_ptr, table, first, end, position, near, far, key_head, scale,
                False, TREES, KV_HEADS, DIM, PAGE, BLOCK_D, BLOCK_N,
            )  # fmt: skip
    page = _pages(table, masked_from, end, PAGE, BLOCK_N)
    for first in range(masked_from, end, BLOCK_N):
        acc, best, total, page = _attend_keys(
            acc, best, total, page, q, cache_ptr, table, first, end, position, near, far, key_head, scale,
            True, TREES, KV_HEADS, DIM, PAGE, BLOCK_D, BLOCK_N,
        )  # fmt: skip
    factor = tl.load(scales_ptr + KV_HEADS + key_head) if HAS_SCALES else 1.0
    _store_tile(
        out_ptr, partial_ptr, sums_ptr, bases_ptr, row, head, flat < flat_end, ordinal, acc, best, total, factor,
        KV_HEADS * GROUP, DIM, BLOCK_D,
    )  # fmt: skip


def paged_attention(
    q: Tensor, cache: Tensor, plan: TilePlan, scale: float, scratch: Scratch, scales: Tensor | None = None
) -> Tensor:
    """See `attention.paged_attention`; `plan` is one of `laying.plan_tiles`, `scratch` holds what must be merged.

    q may lie in a larger tensor, tokens any distance apart. Rows that the plan has no slot for are left unwritten in the output.
    Raises ValueError where the tensors don't fit together.
    """
    _check(q, cache, scales)
    heads, dim = q.shape[1:]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    held = scratch.floats(plan.num_partials * heads * (dim + 1))
    sums, partial = held[: plan.num_partials * heads].view(-1, heads), held[plan.num_partials * heads :].view(-1, heads, dim)
    for launch in plan.launches:
        _launch(launch, q, cache, out, partial, sums, plan, scale, scales)
    if len(plan.merges):
        merge_partials(out, partial, sums, plan.bases, plan.merges, plan.num_merges)
    return out


def _launch(
    launch: Launch,
    q: Tensor,
    cache: Tensor,
    out: Tensor,
    partial: Tensor,
    sums: Tensor,
    plan: TilePlan,
    scale: float,
    scales: Tensor | None,
) -> None:
    kv_heads, dim = cache.shape[1] // 2, cache.shape[2]
    tiling = launch.tiling
    _tile_kernel[(kv_heads * len(launch.tiles),)](
        q,
        cache,
        out,
        partial,
        sums,
        q if scales is None else scales,
        plan.pages,
        plan.rows,
        plan.positions,
        plan.hidden,
        plan.bases,
        launch.tiles,
        launch.count,
        scale * LOG2_E,
        q.stride(0),
        TWO_PHASES=tiling.rows > NARROW,
        TREES=len(plan.hidden) > 0,
        HAS_SCALES=scales is not None,
        TO_HALF=cache.dtype.itemsize == 1 and q.dtype == torch.bfloat16,
        GROUP=q.shape[1] // kv_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        PAGE=plan.page_size,
        FIELDS=TILE_FIELDS,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        BLOCK_M=tiling.rows,
        BLOCK_N=tiling.keys,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )


def _check(q: Tensor, cache: Tensor, scales: Tensor | None) -> None:
    kv_heads, dim = cache.shape[1] // 2, cache.shape[2]
    if q.shape[2] != dim or q.shape[1] % kv_heads or q.stride()[1:] != (dim, 1) or not cache.is_contiguous():
        raise ValueError(
            f"Queries [T, Hq, D] must have heads of the cache's size, {dim}, side by side, a multiple of {kv_heads} of them, and "
            f"the cache must be contiguous; got queries {tuple(q.shape)} with strides {q.stride()}, cache {tuple(cache.shape)}."
        )
    if (scales is None) == (cache.dtype == torch.float8_e4m3fn) or cache.dtype not in (q.dtype, torch.float8_e4m3fn):
        raise ValueError(
            f"A cache must have the queries' dtype, or be float8_e4m3fn and come with scales; got queries {q.dtype}, cache "
            f"{cache.dtype}, scales {'none' if scales is None else tuple(scales.shape)}."
        )
    if scales is not None and (scales.shape != (2 * kv_heads,) or scales.dtype != torch.float32):
        raise ValueError(f"Scales must be float32 [{2 * kv_heads}]; got {scales.dtype} {tuple(scales.shape)}.")
