"""The small operations of a layer in plain torch: norms, rotary embedding, gated activation.

They are the CPU path and the reference for every other form. Called by `runtime.layers` once or twice a layer, so each is
as few torch calls as it can be: at one token a call costs more than its arithmetic.
"""

from functools import cache

import torch
from torch import Tensor

__all__ = [
    "add_rms_norm",
    "adjust_logits",
    "rms_norm",
    "rope",
    "rope_rotate",
    "rope_tables",
    "rope_write",
    "rotation_of_heads",
    "rotation_of_tokens",
    "silu_mul",
    "top_logits",
]


FLOAT8_MAX = 448.0
"""The largest number that float8_e4m3fn holds."""


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


def rotation_of_tokens(cos: Tensor, sin: Tensor, positions: Tensor, rotated: int, kept: int) -> tuple[Tensor, Tensor]:
    """The rows of `rope_tables` at positions int64 [T], for all heads alike: cos and sin [T, 1, D]."""
    return cos.index_select(0, positions), sin.index_select(0, positions)


def rotation_of_heads(cos: Tensor, sin: Tensor, positions: Tensor, rotated: int, kept: int) -> tuple[Tensor, Tensor]:
    """The same for `rotated` heads beside `kept` ones that stay as they are: cos and sin [T, rotated + kept, D].

    So q, k and v turn in one call, as they lie in the projection.
    """
    cos, sin = rotation_of_tokens(cos, sin, positions, rotated, kept)
    return _beside(cos.expand(-1, rotated, -1), sin.expand(-1, rotated, -1), kept)


def _beside(cos: Tensor, sin: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Tables [T, H, D] with those of `kept` heads behind them that don't turn."""
    still = cos.new_ones(1).expand(cos.shape[0], kept, cos.shape[-1])
    return torch.cat((cos, still), 1), torch.cat((sin, torch.zeros_like(still)), 1)


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
    """Take the projection qkv [T, Hq + 2 Hkv, D] to where attention wants it: returns q [T, Hq, D], writes keys and values.

    The heads of q and k are normed by the rows of `norm` [1, Hq + Hkv, D] (None: not at all), then turned by cos and sin, of
    `rotation_of_tokens` or, in this form alone, of `rotation_of_heads`. Keys and values go to the cache [S, 2 Hkv, D] at `places`
    int64 [T], all different, in the cache's dtype. For a float8_e4m3fn cache each head is divided by its entry in `scales`
    float32 [2 Hkv], and what lies beyond the type's largest number becomes that.
    """
    kept = cache.shape[1] // 2
    rotated = qkv.shape[1] - kept
    if norm is not None:
        qk, v = qkv.split_with_sizes((rotated, kept), 1)
        qkv = torch.cat((rms_norm(qk, norm, eps), v), 1)
    if cos.shape[1] == 1:
        cos, sin = _beside(cos.expand(-1, rotated, -1), sin.expand(-1, rotated, -1), kept)
    q, kv = rope_rotate(qkv, cos, sin).split_with_sizes((rotated - kept, 2 * kept), 1)
    if scales is None:
        cache.index_copy_(0, places, kv.to(cache.dtype))
    else:
        cache[places] = (kv.float() / scales[:, None]).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(cache.dtype)
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


def adjust_logits(logits: Tensor, places: Tensor, bias: Tensor, factor: Tensor, amount: Tensor) -> None:
    """Change single entries of logits float32 [R, V] in place, at different `places` int64 [N]: row times V plus token.

    `bias` float32 [N] is added; then positive logits are divided by `factor` and others multiplied; then `amount` is subtracted.
    """
    flat = logits.view(-1)
    old = flat[places] + bias
    flat[places] = torch.where(old > 0, old / factor, old * factor) - amount
