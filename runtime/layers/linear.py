"""Linear layers behind one seam: a `LinearMethod` makes a `Linear` out of a `LinearSource`, the model only calls `apply`.

Here stands the plain method (float weights, the reference); the CPU's int8 and int4 forms lie in `runtime.quant`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from branchpoint.runtime.quant.blocks import FourBit
from branchpoint.runtime.weights.checkpoint import Stored

__all__ = ["Linear", "LinearMethod", "LinearSource", "Plain", "PlainLinear"]


@dataclass(frozen=True, slots=True)
class LinearSource:
    """Where a linear's weights come from: tensors [n_i, K] that lie one below the other (q, k and v), and a bias [N] or None."""

    name: str
    parts: tuple[Stored, ...]
    bias: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K): outputs and inputs."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def dense(self) -> Tensor:
        """The weights [N, K] in the checkpoint's float dtype, float32 out of blocks."""
        tensors = [part.read() for part in self.parts]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def four_bit(self) -> FourBit | None:
        """The weights as the file's own four-bit blocks, or None where a part isn't stored so."""
        readers = [part.read_blocks for part in self.parts if part.read_blocks is not None]
        if len(readers) != len(self.parts):
            return None
        return FourBit.concatenate([read() for read in readers])


class Linear(Protocol):
    """One linear layer with its weights."""

    @property
    def apply(self) -> Callable[[Tensor], Tensor]:
        """Maps x [T, K] of any float dtype to [T, N]: of the model's dtype, or of bfloat16 where the form computes in that."""


class LinearMethod(Protocol):
    """Creates linears; one object serves a whole model."""

    def create(self, source: LinearSource) -> Linear:
        """The layer of this source. Raises ModelError where the method can't hold its shape."""


class PlainLinear:
    """Weights [N, K] as they are multiplied, with a bias [N] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N] of the weight's dtype."""
        return functional.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Plain:
    """Float weights of `dtype` on `device`; in float32 the reference that every other method is measured against."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def create(self, source: LinearSource) -> PlainLinear:
        """See `LinearMethod`."""
        bias = None if source.bias is None else source.bias.to(self.device, self.dtype)
        return PlainLinear(source.dense().to(self.device, self.dtype), bias)
