"""What can go wrong with a device, told apart: what costs one step, and what costs the process.

The runner computes inside `watched`; the engine ends with a `DeviceLost`, and its host tells everybody whose call was open.
"""

import contextlib
from collections.abc import Iterator

import torch

from branchpoint.runtime.errors import DeviceLost

__all__ = ["is_device_failure", "watched"]

_SIGNS = ("CUDA error", "Triton Error [CUDA]", "CUBLAS_STATUS_", "CUDNN_STATUS_", "device-side assert", "CUDA driver error")


def is_device_failure(error: Exception) -> bool:
    """Whether `error` leaves the device unusable for this process. Too little memory doesn't: other steps may fit."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


@contextlib.contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Raises DeviceLost, in words for whoever runs the engine, where what happens inside costs the device."""
    try:
        yield
    except RuntimeError as error:
        if not is_device_failure(error):
            raise
        first = str(error).strip().splitlines()[0][:300]
        raise DeviceLost(f"The device {device} failed, and the engine can't go on: {first}. Start it again.") from error
