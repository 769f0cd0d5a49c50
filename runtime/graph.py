"""Forward passes of small steps as captured graphs: one launch in place of some hundred, for decoding and for verifying drafts.

The runner asks `StepGraphs` first. Steps are padded to a few numbers of tokens; what padding writes goes to a place of the cache
that nobody reads. A graph is captured when steps of its kind come again, so that rare ones cost nothing.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from branchpoint.runtime.batch import Batch
from branchpoint.runtime.models.base import LayerAttention, Model
from branchpoint.runtime.plan import StepPlan

__all__ = ["Capture", "GraphedAttention", "StepGraphs", "capture_on_cuda", "padded_sizes"]

Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Takes what computes a tensor from tensors that stay where they are; gives what computes it again from their new contents."""

LONGEST_SLOT = 17
"""Tokens of a slot in a graphed step: one that is certain and its guesses. Prefill chunks have too many shapes."""

MOST_GRAPHS = 96


@runtime_checkable
class GraphedAttention(LayerAttention, Protocol):
    """What a backend must offer beside `LayerAttention` for its steps to be captured."""

    @property
    def plan_key(self) -> tuple[int, ...]:
        """Equal for two planned steps where a graph of the one serves the other."""

    def plan(self, batch: Batch) -> None:
        """Prepare for one step."""


def padded_sizes(most: int) -> tuple[int, ...]:
    """The numbers of tokens that steps are padded to, up to `most`: apart by at most a quarter, or eight."""
    sizes = [1, 2, 4]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + (4 if sizes[-1] < 8 else max(8, _power_below(sizes[-1]) // 4)))
    return (*(size for size in sizes if size < most), most)


def _power_below(size: int) -> int:
    """The largest power of two that is at most `size`."""
    return 1 << (size.bit_length() - 1)


class StepGraphs:
    """Runs small steps of `model` over `attention`, of at most `sizes[-1]` tokens; `capture` is `capture_on_cuda` on a GPU."""

    def __init__(
        self, model: Model, attention: GraphedAttention, sizes: tuple[int, ...], device: torch.device, capture: Capture
    ) -> None:
        self._model = model
        self._attention = attention
        self._sizes = sizes
        self._capture = capture
        self._inputs = {size: torch.zeros(3, size, dtype=torch.int64, device=device) for size in sizes}
        self._replays: dict[tuple[int, ...], Callable[[], Tensor] | None] = {}  # None: such a step has come once

    @property
    def num_graphs(self) -> int:
        """How many graphs have been captured."""
        return sum(replay is not None for replay in self._replays.values())

    def size_for(self, plan: StepPlan) -> int | None:
        """To how many tokens the step is padded; None where it is too large, or of another kind, to be captured."""
        if plan.num_tokens > self._sizes[-1] or any(slot.count > LONGEST_SLOT for slot in plan.slots):
            return None
        return self._sizes[bisect_left(self._sizes, plan.num_tokens)]

    def run(self, batch: Batch) -> Tensor:
        """Hidden states [T, hidden_size] of a batch padded to one of the sizes, overwritten by the next step of its kind."""
        size = batch.inputs.shape[1]
        inputs = self._inputs[size]
        inputs.copy_(batch.inputs)
        self._attention.plan(Batch(inputs, batch.rows, batch.table))

        def compute() -> Tensor:
            return self._model.forward(inputs[0], inputs[1], self._attention)

        kind = (size, *self._attention.plan_key)
        if kind not in self._replays:
            self._replays[kind] = None
            return compute()  # compiles and loads what a graph may only launch
        replay = self._replays[kind]
        if replay is None:
            if self.num_graphs >= MOST_GRAPHS:
                return compute()
            replay = self._replays[kind] = self._capture(compute)
        return replay()


def capture_on_cuda(device: torch.device) -> Capture:
    """Captures into graphs that share their memory: they run one at a time, on the current stream."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            out = compute()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return capture
