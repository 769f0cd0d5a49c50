"""Attention where several slots share cached tokens: those are read once for all of them and merged by log-sum-exp.

`paged_attention` merges its parts with this; the identity is the online softmax's (Milakov and Gimelshein 2018), used over
shared prefixes as in Hydragen (Juravsky et al. 2024).
"""

import torch
from torch import Tensor

__all__ = ["merge_parts"]


def merge_parts(out: Tensor, sums: Tensor, rows: slice | Tensor, part_out: Tensor, part_sums: Tensor) -> None:
    """Merge attention over further keys into `out` [T, Hq, D] and `sums` [T, Hq] float32 at `rows`, in place.

    part_out [N, Hq, D] and part_sums [N, Hq] are the outputs and natural log-sum-exps of the same queries over other keys.
    """
    whole = isinstance(rows, slice)
    old_out = out[rows] if isinstance(rows, slice) else out.index_select(0, rows)
    old_sums = sums[rows] if isinstance(rows, slice) else sums.index_select(0, rows)
    share = torch.sigmoid(part_sums - old_sums).unsqueeze(-1).to(out.dtype)
    old_out.lerp_(part_out, share)
    old_sums.copy_(torch.logaddexp(old_sums, part_sums))
    if not whole and isinstance(rows, Tensor):
        out.index_copy_(0, rows, old_out)
        sums.index_copy_(0, rows, old_sums)
