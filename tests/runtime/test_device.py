"""What a device's failures cost: a broken row its request, a broken device the engine, and everybody is told."""

from collections.abc import Callable

import pytest
import torch

from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.device import is_device_failure, watched
from branchpoint.runtime.errors import DeviceLost
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed
from branchpoint.runtime.process import EngineThread
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampling import SamplingParams

CPU = torch.device("cpu")
POISON = 77


def _call(name: str, prompt: tuple[int, ...]) -> Call:
    return Call(name, prompt, SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))


def _runner(engine: object) -> TorchRunner:
    runner = engine._runner  # type: ignore[attr-defined]  # what an engine runs is nobody's business but this test's
    assert isinstance(runner, TorchRunner)
    return runner


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_unusable_logits_end_their_request_alone(value: float) -> None:
    healthy = [_call(f"h{index}", tuple(range(index, 40 + index, 2))) for index in range(3)]

    def run(*calls: Call) -> dict[str, list[Event]]:
        loaded = build_engine(EngineConfig(model="dummy:llama", num_pages=64, threads=1, seed=1))
        with torch.inference_mode():  # one token spoils its context
            _runner(loaded.engine)._model._embedding[POISON] = value  # type: ignore[attr-defined]  # a Decoder's
        events: dict[str, list[Event]] = {}
        try:
            for call in calls:
                loaded.engine.submit(call)
            while loaded.engine.has_work:
                for event in loaded.engine.step():
                    events.setdefault(event.id, []).append(event)
        finally:
            loaded.engine.close()
            loaded.close()
        return events

    def said(events: list[Event]) -> list[int]:
        return [token for event in events if isinstance(event, Delta) for token in event.tokens]

    alone = run(*healthy)
    beside = run(healthy[0], _call("sick", (5, POISON, 9)), *healthy[1:])
    (failure,) = beside.pop("sick")
    assert isinstance(failure, Failed) and "logits are unusable" in failure.message
    for name, events in beside.items():
        assert isinstance(events[-1], Completed)
        assert said(events) == said(alone[name])


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nMore words."), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True),
        (RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), True),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_only_what_breaks_the_device_counts_as_its_loss(error: Exception, lost: bool) -> None:
    assert is_device_failure(error) == lost
    with pytest.raises(DeviceLost if lost else type(error)) as raised, watched(CPU):
        raise error
    if lost:
        assert "More words" not in str(raised.value) and "Start it again" in str(raised.value)


def _broken(*_: object) -> None:
    raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize("count", [1, 3])
def test_a_lost_device_ends_the_engine_and_every_open_call_is_told(count: int) -> None:
    loaded = build_engine(EngineConfig(model="dummy:llama", num_pages=64, threads=1))
    _runner(loaded.engine)._model.forward = _broken  # type: ignore[method-assign,assignment]  # as a device fails
    ends: list[Event] = []
    with EngineThread(loaded) as host:
        keep: Callable[[Event], None] = ends.append
        for number in range(count):
            host.submit(_call(f"c{number}", (1, 2, 3)), keep)
        host._thread.join(20)
        assert host.dead is not None and "device-side assert" in str(host.dead)
    assert {type(event) for event in ends} == {Failed} and len(ends) == count
    assert all(isinstance(event, Failed) and event.kind == "engine_dead" for event in ends)
