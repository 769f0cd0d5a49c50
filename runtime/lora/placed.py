"""Adapters on the device, and a step's rows with them: each stretch of rows with one adapter goes through its two matrices, which
is added to what the model's own weights give, whatever form those have.

The runner asks for a step that has such rows; others go through the model itself. Plain torch serves CPU and CUDA. What a GPU's
steps are about to need is brought there by a thread, on a stream of its own.
"""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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

WAIT_SECONDS = 0.01
ALIGNMENT = 64
"""Elements at whose multiples each matrix begins."""


class PlacedAdapters:
    """Adapters for `model`, of which the `most` that were used last stay on its device. See `places.AdapterPlaces`.

    `apart` brings them there beside the steps, as is done for GPUs; else it is done when somebody asks.
    """

    def __init__(self, model: Decoder, most: int, device: torch.device, *, apart: bool | None = None) -> None:
        self._model = model
        self._most = most
        self._device = device
        self._linears = layer_linears(model.config)
        self._placed: OrderedDict[Adapter, Placed] = OrderedDict()
        self._coming: dict[Adapter, Future[Placed]] = {}
        self._lost: set[Adapter] = set()  # they could not be brought
        on_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_cuda else None
        apart = on_cuda if apart is None else apart
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="branchpoint-adapter") if apart else None

    @property
    def num_placed(self) -> int:
        """How many are on the device."""
        return len(self._placed)

    def ready(self, adapter: Adapter) -> bool:
        """See `AdapterPlaces`. One that could not be brought is ready, too: the step that needs it tells why."""
        if self._thread is None:
            return True
        self._take_in()
        if adapter in self._coming:
            return False
        if adapter in self._placed:
            self._placed.move_to_end(adapter)
            return True
        if adapter in self._lost:
            return True
        while self._placed and len(self._placed) + len(self._coming) >= self._most:
            self._placed.popitem(last=False)
        self._coming[adapter] = self._thread.submit(self._bring, adapter, self._current())
        return False

    def wait(self) -> None:
        """See `AdapterPlaces`."""
        if self._coming:
            wait(self._coming.values(), WAIT_SECONDS, FIRST_COMPLETED)

    def close(self) -> None:
        """See `AdapterPlaces`."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def model_for(self, plan: StepPlan) -> Model | None:
        """The model as it is for a step's rows; None where none of them has an adapter."""
        stretches = _stretches(plan)
        if not stretches:
            return None
        self._take_in()
        added = [(rows, self._place(adapter)) for adapter, rows in stretches]
        most = max(self._most, len({adapter for adapter, _ in stretches}))
        while len(self._placed) > most:
            self._placed.popitem(last=False)

        def change(layer: int, name: LinearName, base: Linear) -> Linear:
            own = [(rows, low[layer, name]) for rows, low in added if (layer, name) in low]
            return AdaptedLinear(base, own, self._model.dtype) if own else base

        return self._model.with_linears(change)

    def _take_in(self) -> None:
        """Those that have arrived are used last."""
        for adapter, coming in tuple(self._coming.items()):
            if coming.done():
                del self._coming[adapter]
                if coming.exception() is None:
                    self._placed[adapter] = coming.result()
                else:
                    self._lost.add(adapter)

    def _place(self, adapter: Adapter) -> Placed:
        """What `adapter` adds to which linear, on the device; it counts as used last."""
        self._lost.discard(adapter)
        if adapter not in self._placed:
            self._placed[adapter] = self._bring(adapter, None)
        self._placed.move_to_end(adapter)
        return self._placed[adapter]

    def _bring(self, adapter: Adapter, user: "torch.cuda.Stream | None") -> Placed:
        """Copy all that `adapter` adds to the device as one; steps on the stream of its `user` will compute with it."""
        assert isinstance(adapter, LoraAdapter), "adapters of this runner are read by `peft`"
        places = [(layer, name) for layer in range(self._model.config.num_layers) for name in LINEARS]
        found = {place: self._low_rank(adapter, place[0], self._linears[place[1]]) for place in places}
        added = {place: low for place, low in found.items() if low is not None}
        matrices = [matrix for low in added.values() for matrix in (low.down, low.up)]
        padded = [functional.pad(matrix.view(-1), (0, -matrix.numel() % ALIGNMENT)) for matrix in matrices]
        with nullcontext() if user is None else torch.cuda.stream(self._stream):
            flat = torch.cat(padded).to(self._device)
        if user is not None:
            flat.record_stream(user)
        parts = flat.split([len(each) for each in padded])
        moved = iter([part[: matrix.numel()].view(matrix.shape) for part, matrix in zip(parts, matrices, strict=True)])
        return {place: LowRank(next(moved), next(moved)) for place in added}

    def _current(self) -> "torch.cuda.Stream | None":
        return None if self._stream is None else torch.cuda.current_stream(self._device)

    def _low_rank(self, adapter: LoraAdapter, layer: int, linear: LayerLinear) -> LowRank | None:
        """Its matrices for one linear as one, on the host: below each other on the way down, along a diagonal on the way up."""
        pairs = [(name, adapter.pairs[layer, name]) for name in linear.outputs if (layer, name) in adapter.pairs]
        if not pairs:
            return None
        down = torch.cat([pair.down for _, pair in pairs]).to(self._model.dtype)
        up = torch.zeros(len(down), sum(linear.outputs.values()), dtype=down.dtype)
        row, columns = 0, dict(zip(linear.outputs, np.cumsum([0, *linear.outputs.values()]).tolist(), strict=False))
        for name, pair in pairs:
            rank = len(pair.down)
            scaled = pair.up.float() * adapter.scale
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
