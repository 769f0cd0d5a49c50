"""Numbers between host and device in one copy each way: a step sends what it decided and fetches what came out of it.

Copies to a GPU start in pinned memory and wait for nothing; `Fetch.wait` is the one place where a step waits for the device.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Fetch", "pinned", "send"]

ALIGNMENT = 16
"""Bytes at whose multiples each tensor begins: what kernels load at once."""


def send(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays as tensors of their shapes and dtypes on the device. On a CPU they share memory with the arrays."""
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    offsets = _offsets([array.nbytes for array in arrays])
    staged = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    held = staged.numpy()
    for array, offset in zip(arrays, offsets[:-1], strict=True):
        held[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    sent = staged.to(device, non_blocking=True)
    return [
        sent[offset : offset + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for array, offset in zip(arrays, offsets[:-1], strict=True)
    ]


def pinned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor in host memory that CUDA copies from and to without a stop on the way, of just this size.

    torch's own allocator of such memory takes the next power of two, which is for small tensors that come and go.
    """
    held = torch.empty(tuple(shape), dtype=dtype)
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostRegister(held.data_ptr(), held.nbytes, 0))
    weakref.finalize(held, runtime.cudaHostUnregister, held.data_ptr()).atexit = False
    return held


class Fetch:
    """Tensors on their way to the host: the copy is asked for at once, behind what computes them, and waited for in `wait`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._held: Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        if tensors and tensors[0].device.type == "cuda":
            flat = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors])
            self._held = torch.empty(flat.shape, dtype=torch.uint8, pin_memory=True)
            self._held.copy_(flat, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def also(self, tensor: Tensor) -> npt.NDArray[Any]:
        """A tensor that was there when the copy was asked for: waits for nothing that the device was given to do since."""
        if self._copied is None:
            return tensor.numpy()
        stream = torch.cuda.Stream(tensor.device)
        stream.wait_event(self._copied)
        with torch.cuda.stream(stream):
            return tensor.cpu().numpy()

    def wait(self) -> list[npt.NDArray[Any]]:
        """The tensors as arrays. This is where a step waits for a GPU."""
        if self._held is None or self._copied is None:
            return [tensor.numpy() for tensor in self._tensors]
        self._copied.synchronize()
        parts = self._held.split([tensor.nbytes for tensor in self._tensors])
        return [
            part.clone().view(tensor.dtype).view(tensor.shape).numpy() for part, tensor in zip(parts, self._tensors, strict=True)
        ]


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each of the parts of these sizes begins, and where the last ends."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets
