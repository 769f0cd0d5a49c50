"""The gated activation on a GPU: gate and up are read once, their product is written once.

The form of `reference.silu_mul`; `operations` chooses between the two.
"""

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["silu_mul"]

BLOCK = 1024


@triton.jit
def _silu_mul_kernel(gate_up_ptr: tl.tensor, out_ptr: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr) -> None:
    """One program for BLOCK columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up_ptr + row * 2 * width + columns, mask=inside, other=0.0)
    up = tl.load(gate_up_ptr + (row * 2 + 1) * width + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1 + tl.exp(-wide))).to(gate.dtype)  # rounded before the product, as in the reference
    tl.store(out_ptr + row * width + columns, (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `reference.silu_mul`: gate_up [T, 2F] contiguous to [T, F]. Raises ValueError for other shapes."""
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or not gate_up.is_contiguous():
        raise ValueError(f"Expected gate and up side by side, contiguous [T, 2F]; got {tuple(gate_up.shape)}.")
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    if out.numel():
        _silu_mul_kernel[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, BLOCK=BLOCK, num_warps=4)
    return out
