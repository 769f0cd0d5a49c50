"""Graphed steps: sizes, which steps are taken, and the same tokens and logits when graphs replay padded steps.

The capture is a stand-in that computes anew from the tensors that a graph would read, with Triton's kernels in its interpreter.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.operations import triton_operations
from branchpoint.runtime import graph
from branchpoint.runtime.batch import Batch
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.graph import LONGEST_SLOT, StepGraphs, padded_sizes
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.plan import RowResult, Slot, StepPlan, TokenMask
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.tiled_attention import TiledAttention
from branchpoint.runtime.weights.loader import LoadedModel, load_model

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize("most", [1, 3, 8, 100, 512])
def test_sizes_rise_to_the_most_and_waste_little(most: int) -> None:
    sizes = padded_sizes(most)
    assert sizes[-1] == most and sizes == tuple(sorted(set(sizes)))
    assert all(larger - smaller <= max(8, smaller / 3) for smaller, larger in pairwise(sizes))
    assert len(sizes) < 24


class _Recorder(Sampler):
    def __init__(self) -> None:
        super().__init__(())
        self.seen: list[torch.Tensor] = []

    def sample(self, logits: torch.Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        self.seen.append(logits.clone())
        return super().sample(logits, rows, mask)


def _runner(loaded: LoadedModel) -> tuple[TorchRunner, _Recorder]:
    attention = TiledAttention(loaded.config, 32, 16, torch.float32, CPU, query_dtype=torch.float32, max_sequences=8)
    recorder = _Recorder()
    return TorchRunner(loaded.model, attention, recorder, CPU), recorder


def _sequence(name: str, count: int, pages: list[int]) -> Sequence:
    return Sequence(name, 0, [(7 * at + len(name)) % 250 for at in range(count)], count, GREEDY, 7, pages=pages)


def _run(runner: TorchRunner) -> None:
    """Steps of three tokens, of which one pads to four, then one with a draft to verify."""
    members = [_sequence("a" * number, 20, [3 * number, 3 * number + 1]) for number in range(1, 4)]
    for at in range(2):
        runner.execute(StepPlan(tuple(Slot(member, at, 1, (at,)) for member in members)), lambda: None)
    runner.execute(StepPlan((Slot(members[0], 2, 3, (2, 3, 4)), Slot(members[2], 2, 1, (2,)))), lambda: None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows of padding hold whatever was in memory
def test_replayed_steps_give_what_plain_ones_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchpoint.runtime.models.decoder.operations_for", lambda device: triton_operations())
    loaded = load_model(EngineConfig(model="dummy:qwen3", threads=1, seed=1), CPU)
    plain, expected = _runner(loaded)
    _run(plain)
    graphed, recorder = _runner(loaded)
    captured: list[Callable[[], torch.Tensor]] = []
    attention = graphed._attention
    assert isinstance(attention, TiledAttention)
    attention.caches[0][-16:] = torch.nan  # what padding writes must reach nobody, whatever it was

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        captured.append(compute)
        return compute

    graphed.graphs = StepGraphs(loaded.model, attention, padded_sizes(8), CPU, capture)
    _run(graphed)
    for one, other in zip(recorder.seen, expected.seen, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert graphed.graphs.num_graphs == len(captured) >= 1


def test_only_small_steps_of_short_slots_are_taken() -> None:
    loaded = load_model(EngineConfig(model="dummy:llama", threads=1, seed=1), CPU)
    runner, _ = _runner(loaded)
    attention = runner._attention
    assert isinstance(attention, TiledAttention)
    graphs = StepGraphs(loaded.model, attention, padded_sizes(24), CPU, lambda compute: compute)
    sequence = _sequence("a", 30, [0, 1])

    def size(*counts: int) -> int | None:
        return graphs.size_for(StepPlan(tuple(Slot(sequence, 0, count) for count in counts)))

    assert [size(1), size(1, 1, 1), size(5), size(1, 16), size(1, 1, 17)] == [1, 4, 8, 24, 24]
    assert size(LONGEST_SLOT + 1) is None
    assert size(*[1] * 25) is None


def test_a_graph_that_no_step_was_for_long_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_GRAPHS", 2)
    monkeypatch.setattr(graph, "FORGOTTEN", 6)

    class Nothing:
        plan_key = ()

        def plan(self, batch: Batch) -> None:
            """Nothing to prepare."""

    class Sizes:
        def forward(self, tokens: torch.Tensor, *rest: object) -> torch.Tensor:
            return tokens

    captured: list[int] = []

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        captured.append(len(compute()))
        return compute

    graphs = StepGraphs(Sizes(), Nothing(), (1, 2, 4), CPU, capture)  # type: ignore[arg-type]  # only their shapes matter

    def steps(*sizes: int) -> list[int]:
        captured.clear()
        for size in sizes:
            out = graphs.run(Batch(torch.zeros(3, size, dtype=torch.int64), None, SlotTable([], [], [], 16)))
            assert len(out) == size
        return captured

    assert steps(1, 1, 2, 2) == [1, 2]
    assert steps(4, 4, 4, 1, 2) == [], "both are in use"
    assert steps(1, 1, 1, 1, 4, 4) == [4], "the second was used longest ago"
    assert steps(1, 4, 1, 2) == [] and graphs.num_graphs == 2


def test_graphs_for_decoding_are_captured_at_start_for_short_and_long_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(EngineConfig(model="dummy:llama", threads=1, seed=1), CPU)

    class Hollow:
        config = loaded.config

        def forward(self, tokens: torch.Tensor, *rest: object) -> torch.Tensor:
            return torch.zeros(len(tokens), 8)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    captured: list[Callable[[], torch.Tensor]] = []

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        captured.append(compute)
        return compute

    monkeypatch.setattr("branchpoint.runtime.runner.capture_on_cuda", lambda device: capture)
    attention = TiledAttention(loaded.config, 200, 16, torch.float32, CPU, query_dtype=torch.float32, max_sequences=8)
    runner = TorchRunner(Hollow(), attention, Sampler(()), CPU)  # type: ignore[arg-type]  # only numbers of tokens matter
    runner.capture_steps(8, 8)
    assert len(captured) == 2 * len(padded_sizes(8))
    for lengths in ([3], [900], [700, 20, 400], [600] * 4, [900, 31, 500, 1, 1, 16, 700], [40] * 8):
        members = [
            _sequence("x", length, [25 * at + page for page in range(-(-length // 16))]) for at, length in enumerate(lengths)
        ]
        for _ in range(2):
            plan = StepPlan(tuple(Slot(each, each.num_tokens - 1, 1, (each.num_tokens - 1,)) for each in members))
            runner.execute(plan, lambda: None)
    assert len(captured) == 2 * len(padded_sizes(8)), "a decoding step waited for a capture"
