"""From the projection to the cache on a GPU in one pass: norm of each head of q and k, rotation, write of keys and values.

The form of `reference.rope_write`; `operations` chooses between the two. Each element is read once and written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from branchpoint.kernels import reference

__all__ = ["rope_write"]

FLOAT8_MAX = tl.constexpr(reference.FLOAT8_MAX)

ELEMENTS = 1024
"""Pairs of elements that one program turns: what four warps load in two full vectors each."""


@triton.jit
def _weighted(normed: tl.tensor, weight_ptr: tl.tensor, inside: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """The norm times its weight, both rounded to `dtype` on the way, as in the reference."""
    weight = tl.load(weight_ptr, mask=inside, other=0.0).to(tl.float32)
    return (normed.to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)


@triton.jit
def _keep(cache_ptr: tl.tensor, values: tl.tensor, scale: tl.tensor, inside: tl.tensor, SCALES: tl.constexpr) -> None:
    """Store values in the cache's dtype, with SCALES divided by their head's."""
    if SCALES:
        values = tl.clamp(values.to(tl.float32) / scale, -FLOAT8_MAX, FLOAT8_MAX)
    tl.store(cache_ptr, values.to(cache_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rope_write_kernel(
    qkv_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    norm_ptr: tl.tensor,
    places_ptr: tl.tensor,
    q_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    num_heads: tl.tensor,
    num_kv_heads: tl.tensor,
    eps: tl.tensor,
    NORM: tl.constexpr,
    SCALES: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program for HEADS heads of one token; BLOCK is HALF, half of a head, up to a power of two."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    total = num_heads + 2 * num_kv_heads
    inside = (head < total) & (column < HALF)
    turns = inside & (head < num_heads + num_kv_heads)
    at = (token * total + head) * (2 * HALF) + column
    low = tl.load(qkv_ptr + at, mask=inside, other=0.0)
    high = tl.load(qkv_ptr + at + HALF, mask=inside, other=0.0)
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(low * low + high * high, axis=1) / (2 * HALF) + eps)[:, None]
        weight_ptr = norm_ptr + head * (2 * HALF) + column
        low = tl.where(turns, _weighted(low * scale, weight_ptr, turns, dtype), low)
        high = tl.where(turns, _weighted(high * scale, weight_ptr + HALF, turns, dtype), high)
    table = token * (2 * HALF) + column
    held = column < HALF
    low_cos, low_sin = tl.load(cos_ptr + table, mask=held), tl.load(sin_ptr + table, mask=held)
    high_cos, high_sin = tl.load(cos_ptr + table + HALF, mask=held), tl.load(sin_ptr + table + HALF, mask=held)
    new_low = tl.where(turns, low * low_cos + high * low_sin, low).to(dtype)
    new_high = tl.where(turns, high * high_cos + low * high_sin, high).to(dtype)
    is_query = inside & (head < num_heads)
    q_at = (token * num_heads + head) * (2 * HALF) + column
    tl.store(q_ptr + q_at, new_low, mask=is_query)
    tl.store(q_ptr + q_at + HALF, new_high, mask=is_query)
    is_kept = inside & (head >= num_heads)
    kv_at = (tl.load(places_ptr + token) * 2 * num_kv_heads + head - num_heads) * (2 * HALF) + column
    scale = tl.load(scales_ptr + head - num_heads, mask=(head >= num_heads) & (head < total), other=1.0) if SCALES else 1.0
    _keep(cache_ptr + kv_at, new_low, scale, is_kept, SCALES)
    _keep(cache_ptr + kv_at + HALF, new_high, scale, is_kept, SCALES)


def rope_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: Tensor | None,
    eps: float,
    cache: Tensor,
    places: Tensor,
    scales: Tensor | None = None,
) -> Tensor:
    """See `reference.rope_write`. All tensors contiguous, D even. Raises ValueError for other shapes."""
    tokens, total, dim = qkv.shape
    kv_heads = cache.shape[1] // 2
    heads = total - 2 * kv_heads
    tables, weights = (tokens, 1, dim), (1, heads + kv_heads, dim)
    fits = cos.shape == tables and sin.shape == tables and places.shape == (tokens,) and cache.shape[1:] == (2 * kv_heads, dim)
    fits = fits and heads > 0 and dim % 2 == 0 and (norm is None or norm.shape == weights)
    if not fits or not all(each.is_contiguous() for each in (qkv, cos, sin, cache, places)):
        raise ValueError(
            f"Expected contiguous qkv [T, Hq + 2 Hkv, D], cos and sin [T, 1, D], cache [S, 2 Hkv, D] and places [T]; got "
            f"{tuple(qkv.shape)}, {tuple(cos.shape)}, {tuple(sin.shape)}, {tuple(cache.shape)}, {tuple(places.shape)}."
        )
    q = qkv.new_empty(tokens, heads, dim)
    block = triton.next_power_of_2(dim // 2)
    group = max(1, ELEMENTS // block)
    weight = qkv if norm is None else norm.contiguous()
    if (scales is None) == (cache.dtype == torch.float8_e4m3fn):
        raise ValueError(f"A float8_e4m3fn cache comes with scales [2 Hkv], others without; got a cache of {cache.dtype}.")
    if tokens:
        _rope_write_kernel[(tokens, triton.cdiv(total, group))](
            qkv, cos, sin, weight, places, q, cache, qkv if scales is None else scales, heads, kv_heads, eps,
            NORM=norm is not None, SCALES=scales is not None, HALF=dim // 2, HEADS=group, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return q
