"""Four-bit weights in groups of 32 for torch's packed int4 CPU operator, with bfloat16 activations.

A `LinearMethod` for `--cpu-weights int4`, and one of the forms that `quant.measured` chooses from. Q4_0 and Q4_1 blocks map onto
it as they are; only their scales are rounded, from float16 to bfloat16.
"""

import torch
from torch import Tensor
from torch.nn import functional

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.layers.linear import LinearSource
from branchpoint.runtime.quant.blocks import GROUP, FourBit

__all__ = ["Int4", "Int4Linear"]

_ROWS = 16  # the operator takes outputs in sixteens


class Int4Linear:
    """Weights [N, K] packed in four bits; K is a multiple of 32."""

    def __init__(self, blocks: FourBit, bias: Tensor | None) -> None:
        self._outputs = blocks.codes.shape[0]
        extra = -self._outputs % _ROWS
        codes = functional.pad(blocks.codes, (0, 0, 0, extra)).int()
        centre = blocks.minimum + 8.0 * blocks.scale  # the operator computes (code - 8) * scale + centre
        scales = functional.pad(torch.stack((blocks.scale, centre), -1), (0, 0, 0, 0, 0, extra))
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self._scales = scales.transpose(0, 1).contiguous().to(torch.bfloat16)
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        self._plain = extra == 0 and bias is None
        self._linear = torch._weight_int4pack_mm_for_cpu  # a third of the call that torch.ops makes

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N] bfloat16."""
        y: Tensor = self._linear(x.bfloat16(), self._packed, GROUP, self._scales)
        if self._plain:
            return y
        y = y[:, : self._outputs]
        return y if self._bias is None else y + self._bias


class Int4:
    """Every linear in four bits: the file's own blocks where it has such, else rounded to 16 even steps a group."""

    def create(self, source: LinearSource) -> Int4Linear:
        """See `LinearMethod`. Raises ModelError where the inputs aren't a multiple of 32."""
        if source.shape[1] % GROUP:
            raise ModelError(
                f"cpu_weights 'int4' needs inputs in multiples of {GROUP}, but {source.name} has {source.shape[1]}; "
                "use 'float32' or 'int8'."
            )
        return Int4Linear(source.four_bit() or FourBit.rounded(source.dense()), source.bias)
