"""Drawing a token: the first of the largest, and Gumbel noise that depends on seed, position and token alone.

argmax(logits / temperature + Gumbel noise) is a draw from the softmax (Gumbel 1954; Maddison et al. 2014). The noise comes
from a counter hash, so a token's draw doesn't depend on what else is in the batch, or on how often it is drawn again.
"""

import math

import torch
from torch import Tensor

__all__ = ["first_argmax", "gumbel_noise", "keep_best"]

# Odd constants of splitmix64 (Steele et al. 2014), as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

# Multipliers and shifts of a 32-bit mixer with low bias (found by the hash prospector, Wellons 2018), as signed numbers.
_MUL_1 = 0xED5AD4BB - 2**32
_MUL_2 = 0xAC4C1B51 - 2**32
_MUL_3 = 0x31848BAB


def first_argmax(scores: Tensor) -> Tensor:
    """The lowest index of the largest entry: scores [..., V] float32 or float64 to int64 [...]; a NaN counts as largest."""
    if scores.device.type == "cpu":
        return torch.as_tensor(scores.numpy().argmax(axis=-1))  # ten times torch's own on one row
    return scores.argmax(dim=-1)


def gumbel_noise(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise [R, V] float32 for each (seed, position) and token.

    seeds, positions int64 [R]; tokens int32 [V] (the ids, in any order, the same for all rows). Values lie in [-2.9, 22.2].
    """
    bits = _token_bits(_row_keys(seeds, positions), tokens)
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-31)
    uniform.clamp_(max=1 - 2.0**-24)  # the largest integers round up to 1
    # Small uniforms give the large noise that decides draws, and floats are finest there: hence log1p(-u), not log(u).
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _row_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """Two int32 keys for each row, [2, R, 1], by two rounds of splitmix64 over seed and position."""
    mixed = _splitmix(_splitmix(seeds) ^ positions)
    high, low = (mixed >> 32), ((mixed << 32) >> 32)
    return torch.stack((high, low)).to(torch.int32).unsqueeze(-1)


def _splitmix(state: Tensor) -> Tensor:
    """The output function of splitmix64 on int64 numbers that wrap."""
    z = state + _STEP
    z = (z ^ _shifted(z, 30, 64)) * _MIX_1
    z = (z ^ _shifted(z, 27, 64)) * _MIX_2
    return z ^ _shifted(z, 31, 64)


def _shifted(value: Tensor, count: int, width: int) -> Tensor:
    """A logical right shift of signed numbers of `width` bits."""
    return (value >> count).bitwise_and_((1 << (width - count)) - 1)


def _token_bits(keys: Tensor, tokens: Tensor) -> Tensor:
    """31 random bits [R, V] int32 for each pair of row keys and token; the second key enters halfway, so no two rows permute."""
    x = tokens + keys[0]
    x.bitwise_xor_(_shifted(x, 17, 32)).mul_(_MUL_1)
    x.bitwise_xor_(_shifted(x, 11, 32)).add_(keys[1]).mul_(_MUL_2)
    x.bitwise_xor_(_shifted(x, 15, 32)).mul_(_MUL_3)
    return x.bitwise_xor_(_shifted(x, 14, 32)).bitwise_and_(2**31 - 1)


def keep_best(scores: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Which entries of scores [V] (logits over temperature) may be drawn: int64 indices, ascending.

    In this order: the `top_k` largest (0: all; ties with the last of them stay); of what is left, the fewest most probable whose
    probabilities reach `top_p`, the lower index first among equals; those at least `min_p` times as probable as the best.
    """
    least = -torch.inf
    if 0 < top_k < len(scores):
        least = float(scores.topk(top_k).values[-1])
    if top_p < 1:
        return _nucleus(scores, least, top_p, min_p)
    if min_p > 0:
        least = max(least, float(scores.max()) + math.log(min_p))
    return _places((scores >= least) & (scores > -torch.inf))


def _nucleus(scores: Tensor, least: float, top_p: float, min_p: float) -> Tensor:
    """`keep_best` from top_p on, among the scores that are at least `least`."""
    ordered = _descending(scores)
    ordered = ordered[: int(((ordered >= least) & (ordered > -torch.inf)).sum())].double()
    mass = (ordered - ordered.logsumexp(0)).exp_().cumsum(0)
    count = min(int((mass < top_p).sum()) + 1, len(ordered))
    if min_p > 0:
        count = min(count, int((ordered >= ordered[0] + math.log(min_p)).sum()))
    last = ordered[count - 1].to(scores.dtype)
    kept = scores > last
    equal = _places(scores == last)
    kept[equal[: count - int(kept.sum())]] = True
    return _places(kept)


def _descending(scores: Tensor) -> Tensor:
    """A sorted copy of scores [V], the largest first."""
    if scores.device.type == "cpu":
        values = scores.numpy().copy()
        values.sort()  # thirty times faster than torch's own on a vocabulary
        return torch.from_numpy(values).flip(0)
    return scores.sort(descending=True).values


def _places(mask: Tensor) -> Tensor:
    """Where mask [V] is true, int64, ascending."""
    return torch.from_numpy(mask.numpy().nonzero()[0]) if mask.device.type == "cpu" else mask.nonzero()[:, 0]
