"""The streams of the host tier's copies, by a log of who waits for whom: tried without a GPU, where a copy is made at once."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from branchpoint.radix import Swap
from branchpoint.runtime.host_memory import HostMemory, _Streams

PAGE = 4
CPU = torch.device("cpu")


class LoggedStream:
    """A stream that does nothing but remember what it was told to wait for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits: list[str] = []
        self.kept = 0  # tensors that it still uses once the code is done with them
        self.events = 0

    def wait_stream(self, other: "LoggedStream") -> None:
        self.waits.append(other.name)

    def wait_event(self, event: str) -> None:
        self.waits.append(event)

    def record_event(self) -> str:
        self.events += 1
        return f"{self.name} {self.events}"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> tuple[HostMemory, list[torch.Tensor], LoggedStream]:
    """Host memory of 8 slots that believes its copies run beside the step, two layers of 8 pages, and the step's stream."""
    step = LoggedStream("step")
    names = iter(("out", "back"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: LoggedStream(next(names)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: step)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: setattr(stream, "kept", stream.kept + 1))
    caches = [torch.arange(8 * PAGE * 4, dtype=torch.float32).view(8 * PAGE, 2, 2) + layer for layer in range(2)]
    memory = HostMemory(8, caches, PAGE)
    memory._streams = _Streams(CPU)
    return memory, caches, step


def test_a_step_waits_for_pages_that_it_reads_and_for_none_that_leave(memory: Any) -> None:
    host, caches, step = memory
    kept = [cache.clone() for cache in caches]
    host.make(Swap(to_host=True, pairs=((1, 0), (2, 1))))
    host.make(Swap(to_host=True, pairs=((3, 2),)))
    assert step.waits == []
    for cache in caches:
        cache.zero_()
    host.make(Swap(to_host=False, pairs=((6, 0), (0, 1))))
    out, back = host._streams.out, host._streams.back
    assert step.waits == ["back"] and back.waits == ["out 1"], "a read waits for the write of its own slot"
    assert out.waits == ["step", "back", "step", "back"], "a page leaves as the step before left it"
    assert (out.kept, step.kept) == (2, 1)
    for cache, before in zip(caches, kept, strict=True):
        pages, old = cache.view(8, -1), before.view(8, -1)
        assert torch.equal(pages[[6, 0]], old[[1, 2]]) and not pages[[1, 2, 3, 4, 5, 7]].any()


def test_a_slot_that_was_read_is_waited_for_again_once_it_is_written_again(memory: Any) -> None:
    host, _, _ = memory
    host.make(Swap(to_host=True, pairs=((1, 0),)))
    host.make(Swap(to_host=False, pairs=((4, 0),)))
    host.make(Swap(to_host=False, pairs=((5, 0),)))
    host.make(Swap(to_host=True, pairs=((2, 0),)))
    host.make(Swap(to_host=False, pairs=((6, 0),)))
    assert host._streams.back.waits == ["out 1", "out 2"]
