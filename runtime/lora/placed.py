"""Adapters on the device, and a step's rows with them: each stretch of rows with one adapter goes through its two matrices, which
is added to what the model's own weights give, whatever form those have.

The runner asks for a step that has such rows; others go through the model itself. Plain torch serves CPU and CUDA.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from branchpoint.runtime.layers.linear import Linear
from branchpoint.runtime.lora.adapter import Adapter
from branchpoint.runtime.lora.peft import LoraAdapter
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.models.decoder import Decoder
from branchpoint.runtime.models.linears import LINEARS, LayerLinear, LinearName, layer_linears
from branchpoint.runtime.plan import StepPlan

__all__ = ["AdaptedLinear", "LowRank", "PlacedAdapters"]


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to a linear [N, K]: `down` [K, R] and `up` [R, N], scale and all, on the model's device."""

    down: Tensor
    up: Tensor


class AdaptedLinear:
    """`base` with an adapter for each of some stretches of a batch's rows. See `Linear`."""

    def __init__(self, base: Linear, added: Sequence[tuple[slice, LowRank]], dtype: torch.dtype) -> None:
        self._base = base
        self._added = added
        self._dtype = dtype

    def apply(self, x: Tensor) -> Tensor:
        """x [T, K] to [T, N] of the model's dtype."""
        y = self._base.apply(x).to(self._dtype)
        x = x.to(self._dtype)
        for rows, low in self._added:
            y[rows].addmm_(x[rows] @ low.down, low.up)
        return y


Placed = dict[tuple[int, LinearName], LowRank]


class PlacedAdapters:
    """Adapters for `model`, of which the `most` that were used last stay on its device."""

    def __init__(self, model: Decoder, most: int, device: torch.device) -> None:
        self._model = model
        self._most = most
        self._device = device
        self._linears = layer_linears(model.config)
        self._placed: OrderedDict[Adapter, Placed] = OrderedDict()

    @property
    def num_placed(self) -> int:
        """How many are on the device."""
        return len(self._placed)

    def model_for(self, plan: StepPlan) -> Model | None:
        """The model as it is for a step's rows; None where none of them has an adapter."""
        stretches = _stretches(plan)
        if not stretches:
            return None
        added = [(rows, self._place(adapter)) for adapter, rows in stretches]
        most = max(self._most, len({adapter for adapter, _ in stretches}))
        while len(self._placed) > most:
            self._placed.popitem(last=False)

        def change(layer: int, name: LinearName, base: Linear) -> Linear:
            own = [(rows, low[layer, name]) for rows, low in added if (layer, name) in low]
            return AdaptedLinear(base, own, self._model.dtype) if own else base

        return self._model.with_linears(change)

    def _place(self, adapter: Adapter) -> Placed:
        """What `adapter` adds to which linear, on the device; it counts as used last."""
        if adapter not in self._placed:
            assert isinstance(adapter, LoraAdapter), "adapters of this runner are read by `peft`"
            places = [(layer, name) for layer in range(self._model.config.num_layers) for name in LINEARS]
            found = {place: self._low_rank(adapter, place[0], self._linears[place[1]]) for place in places}
            self._placed[adapter] = {place: low for place, low in found.items() if low is not None}
        self._placed.move_to_end(adapter)
        return self._placed[adapter]

    def _low_rank(self, adapter: LoraAdapter, layer: int, linear: LayerLinear) -> LowRank | None:
        """Its matrices for one linear as one: below each other on the way down, along a diagonal on the way up."""
        pairs = [(name, adapter.pairs[layer, name]) for name in linear.outputs if (layer, name) in adapter.pairs]
        if not pairs:
            return None
        down = torch.cat([pair.down for _, pair in pairs]).to(self._device, self._model.dtype)
        up = torch.zeros(len(down), sum(linear.outputs.values()), dtype=down.dtype, device=self._device)
        row, columns = 0, dict(zip(linear.outputs, np.cumsum([0, *linear.outputs.values()]).tolist(), strict=False))
        for name, pair in pairs:
            rank = len(pair.down)
            scaled = pair.up.to(self._device).float() * adapter.scale
            up[row : row + rank, columns[name] : columns[name] + linear.outputs[name]] = scaled.T
            row += rank
        return LowRank(down.T.contiguous(), up)


def _stretches(plan: StepPlan) -> list[tuple[Adapter, slice]]:
    """Which rows of a batch have which adapter: one after another, no two neighbours with the same."""
    found: list[tuple[Adapter, slice]] = []
    begin = 0
    for slot in plan.slots:
        adapter, end = slot.sequence.adapter, begin + slot.count
        if adapter is not None:
            if found and found[-1][0] is adapter and found[-1][1].stop == begin:
                begin = found.pop()[1].start
            found.append((adapter, slice(begin, end)))
        begin = end
    return found
