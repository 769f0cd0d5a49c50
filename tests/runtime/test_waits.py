"""What a step does between its launch and its result asks nothing of the device: on a GPU each such question would be a wait.

Kernels compute nothing here; what is held is which of torch's operations run beside them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction

from branchpoint.constrained.mask import allocate
from branchpoint.kernels.operations import triton_operations
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.device_sampler import DeviceSampler
from branchpoint.runtime.drafting.drawn import DrawnDrafter
from branchpoint.runtime.drafting.model import ModelSource
from branchpoint.runtime.graph import StepGraphs, padded_sizes
from branchpoint.runtime.lora.peft import read_adapter
from branchpoint.runtime.lora.placed import PlacedAdapters
from branchpoint.runtime.models.decoder import Decoder
from branchpoint.runtime.plan import UNKNOWN, PageCopy, Slot, StepPlan, TokenMove
from branchpoint.runtime.plan_draft import PlanDraft
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.tiled_attention import TiledAttention
from branchpoint.runtime.transfer import Fetch
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.adapters import write_adapter

CPU = torch.device("cpu")
ASKING = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "unique", "_unique2", "equal", "bincount"}
SENT = {"lift_fresh", "lift_fresh_copy", "lift"}
"""A tensor that was made of numbers of the host: on its way to a GPU it would stop, since such memory isn't pinned."""


class _NoQuestions(TorchDispatchMode):
    """Fails at an operation that would wait for a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1]
        )
        assert name not in ASKING | SENT and not by_mask, f"{func} would wait for a GPU"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> TorchRunner:
    plain = torch.from_numpy

    def from_numpy(array: np.ndarray) -> torch.Tensor:
        if sys._getframe(1).f_code.co_filename.endswith("runtime/transfer.py"):  # it sends from pinned memory
            with _disable_current_modes():
                return plain(array)
        return plain(array)

    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    monkeypatch.setattr(InterpretedFunction, "run", lambda *_, **__: None)
    monkeypatch.setattr("branchpoint.runtime.models.decoder.operations_for", lambda device: triton_operations())
    loaded = load_model(EngineConfig(model="dummy:qwen3", threads=1, seed=1), CPU)
    attention = TiledAttention(loaded.config, 64, 16, torch.float32, CPU, query_dtype=torch.float32, max_sequences=16)
    runner = TorchRunner(loaded.model, attention, DeviceSampler((2,)), CPU)
    runner.graphs = StepGraphs(loaded.model, attention, padded_sizes(16), CPU, lambda compute: compute)
    return runner


def _sequences() -> list[Sequence]:
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"top_p": 0.5, "logprobs": 3},
        {"frequency_penalty": 1.0, "logit_bias": ((3, 1.0),)},
        {"min_tokens": 9, "prompt_logprobs": 1},
        {},
    ]
    return [
        Sequence(str(at), 0, [5] * 20, 20, SamplingParams(**each), at, pages=[2 * at, 2 * at + 1], pooled=at == 4)
        for at, each in enumerate(options)
    ]


def test_a_step_and_the_one_ahead_of_it_wait_for_nothing(runner: TorchRunner) -> None:
    members = _sequences()
    copies = (PageCopy(1, 3, 4), PageCopy(3, 5, 4), TokenMove((1,), (40,)))
    chunk = StepPlan(tuple(Slot(each, 0, 20, (18, 19)) for each in members), copies)
    decode = StepPlan(
        (*(Slot(each, 20, 1, (20,)) for each in members[:3]), Slot(members[3], 20, 3, (20, 21, 22), draft=(1, 2))),
        sources=((1,), (3,), (5,), ()),
    )
    members[3].tokens.append(7)
    mask = allocate(10, 512)
    mask[:] = -1
    mask[1, 0] = 7
    for _ in range(3):  # the first time of a kind runs by itself, the second captures
        with _NoQuestions(), torch.inference_mode():
            first = runner.launch(chunk)
            first.draw(lambda: mask)
            first.drawn[0].tokens.zero_()  # kernels that compute nothing have drawn anything
            runner.launch(decode, first).draw(lambda: None)


def test_a_step_with_adapters_that_are_there_waits_for_nothing(runner: TorchRunner, tmp_path: Path) -> None:
    model = runner._model
    assert isinstance(model, Decoder)
    runner.adapters = places = PlacedAdapters(model, 2, CPU, apart=True)
    members = _sequences()[:4]
    for number, member in enumerate(members[1:3]):
        folder = write_adapter(tmp_path / str(number), model.config, seed=number)
        member.adapter = read_adapter(str(number), str(folder), model.config, 64)
        while not places.ready(member.adapter):
            places.wait()
    chunk = StepPlan(tuple(Slot(each, 0, 20, (19,)) for each in members))
    decode = StepPlan(tuple(Slot(each, 20, 1, (20,)) for each in members), sources=((0,), (1,), (2,), (3,)))
    with _NoQuestions(), torch.inference_mode():
        first = runner.launch(chunk)
        first.draw(lambda: None)
        first.drawn[0].tokens.zero_()
        runner.launch(decode, first).draw(lambda: None)
    places.close()


def test_guesses_of_a_model_and_the_step_that_verifies_them_wait_for_nothing(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches: list[int] = []

    class Counted(Fetch):
        def wait(self) -> list[np.ndarray]:
            fetches.append(0)
            return super().wait()

    monkeypatch.setattr("branchpoint.runtime.device_sampler.Fetch", Counted)
    monkeypatch.setattr(  # kernels that compute nothing leave anything in memory, things that are no numbers too
        "branchpoint.runtime.device_sampler.draw_rows",
        lambda logits, *_: (logits.new_zeros(len(logits), dtype=torch.int64), logits.new_zeros(len(logits))),
    )
    runner.runs_ahead = True
    source = ModelSource(runner, 512, 64, verifier=runner)
    drafter = DrawnDrafter("model", source, 512, frozenset({2}))
    members = _sequences()[:2]
    for number, each in enumerate(members):
        each.tokens[0], each.next_row = number, 19  # no prefix is shared, no row of the prompt is wanted
    with _NoQuestions(), torch.inference_mode():
        found = drafter.propose(dict.fromkeys(members, 3))
        draft = PlanDraft(64)
        for each in members:
            draft.add(each, 20)
            draft.guess(each, found[each])
        plan = draft.step(())
        assert plan.guesses is not None and [slot.draft for slot in plan.slots] == [(UNKNOWN,) * 3] * 2
        verify = runner.launch(plan, *plan.guesses.steps)
        verify.draw(lambda: None)
        assert not fetches, "the host has waited for nothing so far"
    verify.finish()
    assert [slot.draft for slot in plan.guessed().slots] == [(0,) * 3] * 2
    assert len(fetches) == 4, "the step's result, and three passes that were done before it"


@pytest.mark.parametrize(
    "ask",
    [
        lambda one: one.sum().item(),
        lambda one: bool(one.any()),
        lambda one: one[one > 0],
        lambda one: torch.tensor([1, 2]) + one,
        lambda one: one.nonzero(),
        lambda one: one.tolist(),
        lambda one: one[[0, 1]],
    ],
)
def test_questions_are_noticed(ask: Any) -> None:
    with pytest.raises(AssertionError, match="would wait"), _NoQuestions():
        ask(torch.from_numpy(np.ones(2)))
