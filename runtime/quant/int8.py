"""Int8 weights, one scale an output, with activations rounded to eight bits as they come: torch's fbgemm linear.

A `LinearMethod` for `--cpu-weights int8`, and one of the forms that `quant.measured` chooses from.
"""

import warnings
from functools import cache

import torch
from torch import Tensor

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.layers.linear import LinearSource

__all__ = ["Int8", "Int8Linear", "int8_available"]

_ENGINES = ("fbgemm", "x86", "onednn")


class Int8Linear:
    """Weights [N, K] packed in int8. Each row's activations are rounded by that row's own range, whatever else is batched."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scale = weight.abs().amax(1).clamp_min_(1e-12).div_(127.0)
        self._sums = (weight / scale.unsqueeze(1)).round_().clamp_(-127, 127).sum(1).mul_(scale)
        self._bias = bias
        self._packed = _pack(weight, scale)
        self._narrow = _saturates()
        self._steps = 127.0 if self._narrow else 255.0
        self._linear = torch.ops.quantized.linear_dynamic.default

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N] float32.

        The operator has one range for all rows. So each is first mapped onto [0, 255] by its own range, zero onto a whole number,
        and mapped back afterwards; one more row, thrown away, pins the operator to that very range. A row gives the same to the
        last bit whatever stands beside it, and alone.
        """
        x = x.float()
        rows = x.shape[0]
        least, most = x.aminmax(dim=1, keepdim=True)
        least.clamp_(max=0.0)
        step = most.clamp_(min=0.0).sub_(least).clamp_min_(1e-12).div_(self._steps)
        zero = least.div_(step).round_()
        codes = x.new_zeros(rows + 1, x.shape[1])
        torch.div(x, step, out=codes[:rows]).sub_(zero).clamp_(0.0, self._steps)
        codes[rows, 0] = self._steps
        y: Tensor = self._linear(self._alone(codes) if rows == 1 else codes, self._packed, self._narrow)[:rows]
        y.mul_(step).addcmul_(zero.mul_(step), self._sums)
        return y if self._bias is None else y.add_(self._bias)

    def _alone(self, codes: Tensor) -> Tensor:
        """A single row's codes without the row that pins the range, where its own largest code is rounded to the end of it."""
        top = codes[0].argmax()
        if codes[0, top] < self._steps - 0.5:
            return codes
        codes[0, top] = self._steps
        return codes[:1]


class Int8:
    """Every linear in int8. Raises ModelError where this torch has no such operator."""

    def __init__(self) -> None:
        if not int8_available():
            raise ModelError(
                "cpu_weights 'int8' needs torch's fbgemm or onednn, which this build lacks; use 'float32' or 'int4'."
            )

    def create(self, source: LinearSource) -> Int8Linear:
        """See `LinearMethod`."""
        return Int8Linear(source.dense().float(), None if source.bias is None else source.bias.float())


def int8_available() -> bool:
    """Whether this torch can multiply in int8 on this CPU."""
    return any(engine in torch.backends.quantized.supported_engines for engine in _ENGINES)


def _pack(weight: Tensor, scale: Tensor) -> torch.ScriptObject:
    """Weights [N, K] float32 packed by their scales [N]."""
    quantized = torch.backends.quantized
    before = quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch announces the end of these constructors; no other packs for fbgemm
        codes = torch.quantize_per_channel(weight, scale.double(), torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8)
    quantized.engine = next(engine for engine in _ENGINES if engine in quantized.supported_engines)
    try:
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(codes, None)
    finally:
        quantized.engine = before
    return packed


@cache
def _saturates() -> bool:
    """Whether this CPU's int8 products overflow at full range (AVX2 without VNNI does): then activations get seven bits."""
    x = torch.full((1, 64), 1.0)
    packed = _pack(torch.full((32, 64), 1.0), torch.full((32,), 1.0 / 127.0))
    y: Tensor = torch.ops.quantized.linear_dynamic(x, packed, False)
    return bool((y - 64.0).abs().max() > 1.0)
