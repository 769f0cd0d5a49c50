"""RMS norms on a GPU, with the residual sum where there is one: each row is read once and written once.

The forms of `reference.rms_norm` and `reference.add_rms_norm`; `operations` chooses between the two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_rms_norm", "rms_norm"]

WIDEST = 16384
"""Elements of a row that one program holds in registers."""


@triton.jit
def _norm_kernel(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    total_ptr: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a row. With ADD the row is x + residual, rounded to its dtype and kept in `total`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    at = row * width + columns
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    wide = x.to(tl.float32)
    if ADD:
        wide += tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        x = wide.to(x.dtype)
        tl.store(total_ptr + at, x, mask=inside)
        wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    normed = (wide * scale).to(x.dtype)  # rounded before the weight, as in the reference
    tl.store(out_ptr + at, (normed.to(tl.float32) * weight.to(tl.float32)).to(x.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `reference.rms_norm`: x [..., D] contiguous, weight [D], D at most 16,384. Raises ValueError for other shapes."""
    return _launch(x, None, weight, eps)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `reference.add_rms_norm`: x, residual [..., D] contiguous, weight [D]. Raises ValueError for other shapes."""
    if residual.shape != x.shape or residual.dtype != x.dtype or not residual.is_contiguous():
        raise ValueError(
            f"The residual must be contiguous and like x, {x.dtype} {tuple(x.shape)}; got {residual.dtype} "
            f"{tuple(residual.shape)}."
        )
    return _launch(x, residual, weight, eps)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm, sum): the sum is x itself where there is no residual."""
    width = x.shape[-1]
    if not x.is_contiguous() or weight.shape != (width,) or width > WIDEST:
        raise ValueError(
            f"Expected contiguous rows of at most {WIDEST} and a weight as wide; got x {tuple(x.shape)} with strides "
            f"{x.stride()} and weight {tuple(weight.shape)}."
        )
    out = torch.empty_like(x)
    total = x if residual is None else torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _norm_kernel[(x.numel() // width,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        total,
        width,
        eps,
        ADD=residual is not None,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return out, total
