"""Attention over a paged KV cache, for slots of any length: prefill chunks, single tokens and drafts in one call.

A layer writes its new keys and values with `write_kv`, then calls `paged_attention` with the step's plan (`layout`). The
cache is [pages x page size, 2 Hkv, D], a token's keys beside its values, so a run of consecutive pages is a view of it.
"""

import torch
from torch import Tensor

from branchpoint.kernels.layout import AttentionPlan, Part
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.shared_prefix import merge_parts

__all__ = ["attend", "paged_attention", "write_kv"]


def write_kv(kv: Tensor, cache: Tensor, places: Tensor) -> None:
    """Write kv [T, 2 Hkv, D] (heads of keys, then of values) into the cache [S, 2 Hkv, D] of the same dtype at `places` [T].

    `places` are int64 and all different.
    """
    cache.index_copy_(0, places, kv)


def paged_attention(
    q: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, scratch: Scratch, scales: Tensor | None = None
) -> Tensor:
    """softmax(scale * q k^T) v for each slot of the plan, causal within it; returns [T, Hq, D] like q.

    q [T, Hq, D] in the plan's order of rows; cache [S, 2 Hkv, D] of the same dtype, Hq a multiple of Hkv, the new keys and values
    already written. A float8_e4m3fn cache comes with `scales` float32 [2 Hkv], one for each head of keys, then of values: what is
    in the cache times its scale is meant. `scale` is positive. `scratch` holds what must be gathered.
    """
    if len(plan.parts) == 1:
        return _attend_part(q, cache, plan.parts[0], scale, scratch, scales)[0]
    out = torch.empty_like(q)
    sums = q.new_empty(q.shape[:2], dtype=torch.float32) if plan.needs_merge else None
    for part in plan.parts:
        part_out, part_sums = _attend_part(q, cache, part, scale, scratch, scales)
        if part.merge and sums is not None:
            merge_parts(out, sums, part.target, part_out, part_sums)
            continue
        _write(out, part.target, part_out)
        if sums is not None:
            _write(sums, part.target, part_sums)
    return out


def _attend_part(
    q: Tensor, cache: Tensor, part: Part, scale: float, scratch: Scratch, scales: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs [N, Hq, D] and log-sum-exps [N, Hq] for the part's target rows."""
    heads, dim = q.shape[1:]
    size = part.size
    queries = q[part.rows] if isinstance(part.rows, slice) else q.index_select(0, part.rows)
    held = cache[part.keys] if isinstance(part.keys, slice) else scratch.gather(cache, part.keys)
    if scales is not None:
        held = (held.float() * scales[:, None]).to(q.dtype)
    keys, values = held.view(size, -1, cache.shape[1], dim).chunk(2, 2)
    out, sums = attend(queries.view(size, -1, heads, dim), keys, values, scale, mask=part.mask, causal=part.causal)
    out, sums = out.reshape(-1, heads, dim), sums.reshape(-1, heads)
    if part.kept is not None:
        out, sums = out.index_select(0, part.kept), sums.index_select(0, part.kept)
    return out, sums


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Dense attention: q [B, T, Hq, D] over k, v [B, L, Hkv, D]. Returns outputs [B, T, Hq, D] and log-sum-exps [B, T, Hq].

    `mask` [B, 1, T, L] is added to the scaled scores; `causal` needs T = L. Log-sum-exps are natural, float32.
    """
    batch, count, heads, dim = q.shape
    form = _flash if q.device.type == "cpu" else _plain
    if count == 1:  # the query heads that share a key head become rows over it: one read serves them all
        kv_heads = k.shape[2]
        q = q.view(batch, kv_heads, heads // kv_heads, dim)
        mask = None if mask is None else mask.expand(batch, 1, heads // kv_heads, mask.shape[-1])
        out, sums = form(q, k.transpose(1, 2), v.transpose(1, 2), scale, mask, False)
        return out.reshape(batch, 1, heads, dim), sums.reshape(batch, 1, heads)
    out, sums = form(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale, mask, causal)
    return out.transpose(1, 2), sums.transpose(1, 2)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """torch's own tiled CPU attention, the form that also returns log-sum-exps. q [B, Hq, T, D], k and v [B, Hkv, L, D]."""
    out, sums = torch._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return out, sums


def _plain(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """The same, by its definition, for devices that have no fused form yet; scores in float32."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1).float(), v.repeat_interleave(group, 1).float()
    scores = (q.float() @ keys.transpose(2, 3)).mul_(scale)
    if mask is not None:
        scores = scores + mask
    if causal:
        ahead = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    sums = scores.logsumexp(-1)
    out = (scores - sums.unsqueeze(-1)).exp() @ values
    return out.to(q.dtype), sums


def _write(target: Tensor, index: slice | Tensor, values: Tensor) -> None:
    if isinstance(index, slice):
        target[index] = values
    else:
        target.index_copy_(0, index, values)
