"""Forward passes of small steps as captured graphs: one launch in place of some hundred, for decoding and for verifying drafts.

The runner asks `StepGraphs` first. Steps are padded to a few numbers of tokens; what padding writes goes to a place of the cache
that nobody reads. A graph is captured when steps of its kind come again, so that rare ones cost nothing.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
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
FORGOTTEN = 1000
"""Graphed steps after which a graph that none of them was makes room for another."""


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


@dataclass(slots=True)
class _Replay:
    """A captured graph, and the number of the step that it ran last."""

    run: Callable[[], Tensor]
    last: int = 0


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
        self._seen: set[tuple[int, ...]] = set()
        self._replays: dict[tuple[int, ...], _Replay] = {}  # by kind, those used longest ago first
        self._steps = 0

    @property
    def num_graphs(self) -> int:
        """How many graphs have been captured."""
        return len(self._replays)

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
        self._steps += 1
        if kind not in self._seen:
            self._seen.add(kind)
            return compute()  # compiles and loads what a graph may only launch
        replay = self._replays.pop(kind, None)
        if replay is None:
            oldest = next(iter(self._replays.items())) if len(self._replays) >= MOST_GRAPHS else None
            if oldest is not None and self._steps - oldest[1].last < FORGOTTEN:
                return compute()
            replay = _Replay(self._capture(compute))
            if oldest is not None:
                del self._replays[oldest[0]]  # it runs no more: capturing has waited for the device
        self._replays[kind] = replay
        replay.last = self._steps
        return replay.run()


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
