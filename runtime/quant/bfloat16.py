"""Bfloat16 weights laid out for oneDNN: the form for many rows on a CPU that multiplies bfloat16 in hardware.

One of the forms that `quant.measured` chooses from for block-quantised checkpoints.
"""

import torch
from torch import Tensor

__all__ = ["Bfloat16Linear", "bfloat16_fast"]


class Bfloat16Linear:
    """Weights [N, K] rounded to bfloat16, products accumulated in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(torch.bfloat16), 16)
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self._linear = torch.ops.mkldnn._linear_pointwise.default

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N] bfloat16."""
        y: Tensor = self._linear(x.bfloat16(), self._weight, self._bias, "none", [], "")
        return y


def bfloat16_fast() -> bool:
    """Whether oneDNN is here and this CPU has instructions for bfloat16."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
