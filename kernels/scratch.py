"""Memory that one attention call gathers into and the next one overwrites: fresh memory for each layer costs more than the copy.

Owned by whoever owns the cache, handed to `paged_attention`.
"""

import math

import torch
from torch import Tensor

__all__ = ["Scratch"]


class Scratch:
    """One buffer that grows to the largest that was asked for. What `gather` returned is overwritten by the next one."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._held = torch.empty(0, dtype=dtype, device=device)

    def gather(self, source: Tensor, index: Tensor) -> Tensor:
        """Entries `index` int64 [N] of the first dimension of source [S, ...], as a tensor [N, ...]."""
        shape = (index.shape[0], *source.shape[1:])
        size = math.prod(shape)
        if size > self._held.numel():
            self._held = source.new_empty(size)
        out = self._held[:size].view(shape)
        torch.index_select(source, 0, index, out=out)
        return out
