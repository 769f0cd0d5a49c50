"""Which forms of the small operations a device gets: Triton's on CUDA, torch's elsewhere. A model asks once, when it is made.

Triton is loaded with the first form of it that is asked for, so that a CPU needs none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from branchpoint.kernels import reference

__all__ = ["Operations", "RopeWrite", "operations_for", "torch_operations", "triton_operations"]


class RopeWrite(Protocol):
    """See `reference.rope_write`."""

    def __call__(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        norm: Tensor | None,
        eps: float,
        cache: Tensor,
        places: Tensor,
        scales: Tensor | None = None,
    ) -> Tensor:
        """Returns q [T, Hq, D]; keys and values are in the cache then."""


@dataclass(frozen=True, slots=True)
class Operations:
    """The forms of one device; signatures are those of `reference`."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    silu_mul: Callable[[Tensor], Tensor]
    rope_write: RopeWrite
    rotation: Callable[[Tensor, Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


def operations_for(device: torch.device) -> Operations:
    """What a model on `device` computes with."""
    return triton_operations() if device.type == "cuda" else torch_operations()


def torch_operations() -> Operations:
    """The plain forms, right on every device."""
    return Operations(
        reference.rms_norm, reference.add_rms_norm, reference.silu_mul, reference.rope_write, reference.rotation_of_heads
    )


def triton_operations() -> Operations:
    """Triton's forms: for CUDA, or for Triton's interpreter."""
    from branchpoint.kernels import activation, norm, rotary

    return Operations(norm.rms_norm, norm.add_rms_norm, activation.silu_mul, rotary.rope_write, reference.rotation_of_tokens)
