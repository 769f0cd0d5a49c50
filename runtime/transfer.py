"""Numbers between host and device in one copy each way: a step sends what it decided and fetches what came out of it.

Copies to a GPU start in pinned memory and wait for nothing; `fetch` is the one place where a step waits for the device.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["fetch", "send"]

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


def fetch(tensors: Sequence[Tensor]) -> list[npt.NDArray[Any]]:
    """The tensors as arrays on the host, once the device has computed them."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    held = torch.cat(flat).cpu()
    parts = held.split([len(each) for each in flat])
    return [part.clone().view(tensor.dtype).view(tensor.shape).numpy() for part, tensor in zip(parts, tensors, strict=True)]


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each of the parts of these sizes begins, and where the last ends."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return offsets
