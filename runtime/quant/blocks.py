"""Four-bit blocks of 32 weights: what Q4_0 and Q4_1 hold, and what float weights can be rounded to.

Read from GGUF by `weights.gguf`, packed for the CPU operator by `quant.int4`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GROUP", "FourBit"]

GROUP = 32


@dataclass(frozen=True, slots=True)
class FourBit:
    """Weights as code * scale + minimum. codes [N, K] uint8 in 0..15; scale, minimum [N, K / 32] float32."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor

    def dense(self) -> Tensor:
        """The weights [N, K] float32."""
        rows, columns = self.codes.shape
        grouped = self.codes.float().view(rows, columns // GROUP, GROUP)
        return (grouped * self.scale.unsqueeze(-1) + self.minimum.unsqueeze(-1)).view(rows, columns)

    def relative_error(self) -> float:
        """The rounding error that these blocks carry, relative to the weights (root mean squares).

        A weight rounded to steps of `scale` is off by scale / sqrt(12) in the root mean square (uniform within a step).
        """
        noise = self.scale.square().mean() / 12.0
        return float((noise / self.dense().square().mean().clamp_min(1e-30)).sqrt())

    @staticmethod
    def concatenate(parts: "list[FourBit]") -> "FourBit":
        """The rows of several matrices of the same width, one below the other."""
        return FourBit(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scale for part in parts]),
            torch.cat([part.minimum for part in parts]),
        )

    @staticmethod
    def rounded(weight: Tensor) -> "FourBit":
        """Round float weights [N, K] (K a multiple of 32) to 16 even steps between each group's least and greatest."""
        rows, columns = weight.shape
        grouped = weight.float().view(rows, columns // GROUP, GROUP)
        minimum, maximum = grouped.amin(-1), grouped.amax(-1)
        scale = ((maximum - minimum) / 15.0).clamp_min(1e-12)
        codes = ((grouped - minimum.unsqueeze(-1)) / scale.unsqueeze(-1)).round_().clamp_(0, 15)
        return FourBit(codes.to(torch.uint8).view(rows, columns), scale, minimum)
