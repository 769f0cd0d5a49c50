"""Bias and penalties on a GPU: single logits changed in place, wherever in the batch they lie.

The form of `reference.adjust_logits`; `runtime.device_sampler` gathers what the rows of a step ask.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["adjust_logits"]

BLOCK = 256


@triton.jit(do_not_specialize=["count"])
def _adjust_kernel(
    logits_ptr: tl.tensor,
    places_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    factor_ptr: tl.tensor,
    amount_ptr: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program for BLOCK logits."""
    each = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = each < count
    places = tl.load(places_ptr + each, mask=inside, other=0)
    factor = tl.load(factor_ptr + each, mask=inside, other=1.0)
    value = tl.load(logits_ptr + places, mask=inside, other=0.0) + tl.load(bias_ptr + each, mask=inside, other=0.0)
    value = tl.where(value > 0, tl.div_rn(value, factor), value * factor)
    tl.store(logits_ptr + places, value - tl.load(amount_ptr + each, mask=inside, other=0.0), mask=inside)


def adjust_logits(logits: Tensor, places: Tensor, bias: Tensor, factor: Tensor, amount: Tensor) -> None:
    """See `reference.adjust_logits`. Raises ValueError for other shapes."""
    count = len(places)
    if logits.dtype != torch.float32 or not logits.is_contiguous() or {len(bias), len(factor), len(amount)} != {count}:
        raise ValueError(
            f"Expected contiguous float32 logits and {count} of each change, got {logits.dtype}, {len(bias)} biases, "
            f"{len(factor)} factors, {len(amount)} amounts."
        )
    if count:
        _adjust_kernel[(triton.cdiv(count, BLOCK),)](logits, places, bias, factor, amount, count, BLOCK=BLOCK, num_warps=4)
