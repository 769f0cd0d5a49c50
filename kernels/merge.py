"""Joins what several tiles computed of one row over different keys: `paged` calls it after the tiles, on a GPU.

The Triton form of what `shared_prefix.merge_parts` does in torch, for any number of parts at once.
"""

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["merge_partials"]


@triton.jit
def _merge_kernel(
    out_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    bases_ptr: tl.tensor,
    merges_ptr: tl.tensor,
    count_ptr: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Program row to merge * HEADS + head; BLOCK_N parts a time."""
    head, number = tl.program_id(0) % HEADS, tl.program_id(0) // HEADS
    if number >= tl.load(count_ptr):
        return
    row = tl.load(merges_ptr + 2 * number).to(tl.int64)
    count = tl.load(merges_ptr + 2 * number + 1)
    base = tl.load(bases_ptr + row).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    best = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for first in range(0, count, BLOCK_N):
        parts = first + tl.arange(0, BLOCK_N)
        slot = (base + parts) * HEADS + head
        sums = tl.load(sums_ptr + slot, mask=parts < count, other=float("-inf"))
        inside = (parts < count)[:, None] & (dims < DIM)[None, :]
        partial = tl.load(partial_ptr + (slot * DIM)[:, None] + dims[None, :], mask=inside, other=0.0)
        highest = tl.maximum(best, tl.max(sums, 0))
        shift = tl.where(highest == float("-inf"), 0.0, highest)  # every part so far may have seen nothing
        kept, shares = tl.exp2(best - shift), tl.exp2(sums - shift)
        total = total * kept + tl.sum(shares, 0)
        acc = acc * kept + tl.sum(shares[:, None] * partial, 0)
        best = highest
    out = (acc / total).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * HEADS + head) * DIM + dims, out, mask=dims < DIM)


def merge_partials(out: Tensor, partial: Tensor, sums: Tensor, bases: Tensor, merges: Tensor, count: Tensor) -> None:
    """Write the rows named in `merges` of out [T, H, D] from their parts.

    partial [P, H, D] float32 holds normalised outputs, sums [P, H] float32 their log-sum-exps in powers of two; those of row r
    lie from bases[r] (int32 [T]) on. merges int32 [M, 2] gives rows and how many parts each has, count int32 [1] how many rows
    there are.
    """
    heads, dim = out.shape[1:]
    _merge_kernel[(heads * len(merges),)](
        out,
        partial,
        sums,
        bases,
        merges,
        count,
        HEADS=heads,
        DIM=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        BLOCK_N=16,
        num_warps=2,
    )
