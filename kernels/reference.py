"""The small operations of a layer in plain torch: norms, rotary embedding, gated activation.

They are the CPU path and the reference for every other form. Called by `runtime.layers` once or twice a layer, so each is
as few torch calls as it can be: at one token a call costs more than its arithmetic.
"""

from functools import cache

import torch
from torch import Tensor

__all__ = ["add_rms_norm", "rms_norm", "rope", "rope_rotate", "rope_tables", "rope_write", "silu_mul", "top_logits"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension, the mean taken in float32.

    x [..., D] of any float dtype, weight [D] of the same; returns a new tensor like x.
    """
    wide = x if x.dtype == torch.float32 else x.float()
    norm: Tensor = torch.linalg.vector_norm(wide, 2, -1, True)
    scale = torch.addcmul(_constant(eps, x.device), norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
    normed = wide * scale
    if wide is not x:
        normed = normed.to(x.dtype)  # the weight is applied in the model's dtype, as the models were trained
    return normed.mul_(weight)


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    """A number as a float32 tensor [1]: made once, since a Python number becomes a new tensor in every call that takes it."""
    return torch.tensor([value], device=device)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and norm the sum: returns (rms_norm(x + residual), x + residual).

    x, residual [..., D], weight [D]; neither input is changed.
    """
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope_tables(angles: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The cos and sin tables that `rope` takes, out of angles [N, D/2] float32 (position times inverse frequency).

    Returns (cos, sin), float32 [N, 1, D]: both halves of a head filled in, the sign of the rotation folded into sin, both
    multiplied by `scale` (yarn's attention factor). Index them with positions [T] to get what a step needs.
    """
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def rope_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the heads x [T, H, D] by the rows of `rope_tables` (cos, sin [T, 1, D], the dtype of x); returns a new tensor.

    Half-split form (RoFormer with the pairs (i, i + D/2)): a query and key projection that lie side by side go in one call.
    """
    return x.mul(cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q [T, Hq, D] and k [T, Hkv, D] by cos, sin [T, 1, D] of `rope_tables`; returns new (q, k)."""
    return rope_rotate(q, cos, sin), rope_rotate(k, cos, sin)


def rope_write(qkv: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None, eps: float, cache: Tensor, places: Tensor) -> Tensor:
    """Take the projection qkv [T, Hq + 2 Hkv, D] to where attention wants it: returns q [T, Hq, D], writes keys and values.

    The heads of q and k are normed by the rows of `norm` [1, Hq + Hkv, D] (None: not at all), then rotated by cos, sin [T, 1, D]
    of `rope_tables`; keys and values go to the cache [S, 2 Hkv, D] at `places` int64 [T], all different, in the cache's dtype.
    """
    kv_heads = cache.shape[1] // 2
    qk, v = qkv.split_with_sizes((qkv.shape[1] - kv_heads, kv_heads), 1)
    if norm is not None:
        qk = rms_norm(qk, norm, eps)
    q, k = rope_rotate(qk, cos, sin).split_with_sizes((qk.shape[1] - kv_heads, kv_heads), 1)
    cache.index_copy_(0, places, torch.cat((k, v), 1).to(cache.dtype))
    return q


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate_up [T, 2F] holds gate in its first F columns and up in the rest; returns [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    activated: Tensor = torch.nn.functional.silu(gate)
    return activated.mul_(up)


def top_logits(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """What log-probabilities are made of: log-sum-exps [R] of logits float32 [R, V], and the `count` best with their tokens.

    Returns (log-sum-exps float32 [R], logits float32 [R, count], tokens int64 [R, count]), the best first, equal ones by the
    lower token. The log-sum-exp of a row that holds NaN or infinity isn't finite, and its best are meaningless.
    """
    values, tokens = logits.sort(dim=-1, descending=True, stable=True)
    return logits.logsumexp(-1), values[:, :count], tokens[:, :count]
