"""Memory that one attention call works in and the next one overwrites: fresh memory for each layer costs more than the copy.

Owned by whoever owns the cache, handed to `paged_attention`.
"""

import math

import torch
from torch import Tensor

__all__ = ["Scratch"]


class Scratch:
    """Buffers that grow to the largest that was asked for. What a method returned is overwritten by its next call."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._held = torch.empty(0, dtype=dtype, device=device)
        self._floats = [torch.empty(0, dtype=torch.float32, device=device)]

    def gather(self, source: Tensor, index: Tensor) -> Tensor:
        """Entries `index` int64 [N] of the first dimension of source [S, ...], as a tensor [N, ...]."""
        if source.dtype.itemsize == 1:  # torch stores 8-bit floats, but doesn't index them everywhere
            return source.view(torch.uint8).index_select(0, index).view(source.dtype)
        shape = (index.shape[0], *source.shape[1:])
        size = math.prod(shape)
        if size > self._held.numel():
            self._held = source.new_empty(size)
        out = self._held[:size].view(shape)
        torch.index_select(source, 0, index, out=out)
        return out

    def floats(self, size: int) -> Tensor:
        """An uninitialised float32 tensor [size], always from the same address until a larger one is asked for.

        Outgrown buffers, which together are no larger than the last one, stay: a captured graph may still write to them.
        """
        held = self._floats[-1]
        if size > held.numel():
            held = held.new_empty(1 << (size - 1).bit_length())
            self._floats.append(held)
        return held[:size]
