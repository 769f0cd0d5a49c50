"""Numbers that a step needs on the device, written on the host and sent without waiting for what the device still does.

What plans a step writes into `room` and calls `send`; on CUDA the copies run in the order of the current stream.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Staging"]

DEEP = 4
"""Buffers in turn: the host plans at most one step ahead of the device, with two sendings a step."""


class Staging:
    """Pinned memory in turns. A buffer is written anew only when the copy out of it is done."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._buffers = [self._new(1 << 12) for _ in range(DEEP)]
        self._copied = [torch.cuda.Event() for _ in range(DEEP)] if self._on_cuda else []
        self._turn = 0
        self._size = 0

    def _new(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32, pin_memory=self._on_cuda)

    def room(self, size: int) -> NDArray[np.int32]:
        """Where to write the next `size` int32 numbers; whoever asks sends them before anybody asks again."""
        self._turn, self._size = (self._turn + 1) % DEEP, size
        if self._on_cuda:
            self._copied[self._turn].synchronize()
        if self._buffers[self._turn].numel() < size:
            self._buffers[self._turn] = self._new(1 << (size - 1).bit_length())
        written: NDArray[np.int32] = self._buffers[self._turn][:size].numpy()
        return written

    def send(self, target: Tensor) -> None:
        """Copy what was written to `target`, int32 of the same size on the device."""
        target.copy_(self._buffers[self._turn][: self._size], non_blocking=True)
        if self._on_cuda:
            self._copied[self._turn].record()
