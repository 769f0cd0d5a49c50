"""The second tier's copies on a GPU: on a stream of their own, in an order in which each step sees what it must.

A CPU has no streams: stand-ins note who waits for whom, and the copies are made at once.
"""

import contextlib

import pytest
import torch

from branchpoint.radix import Swap
from branchpoint.runtime.host_memory import HostMemory


class _Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: "_Stream") -> None:
        self._log.append(f"{self.name} waits for {other.name}")


def test_pages_leave_behind_the_step_and_the_next_step_waits_for_those_that_return(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    computing, copying = _Stream("computing", log), _Stream("copying", log)

    def on(stream: _Stream) -> contextlib.AbstractContextManager[None]:
        log.append(f"on {stream.name}")
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: log.append(f"kept for {stream.name}"))
    caches = [torch.arange(5 * 2 * 4, dtype=torch.float32).view(10, 2, 2) + 100 * layer for layer in range(3)]
    before = [cache.clone() for cache in caches]
    memory = HostMemory(4, caches, 2)
    memory._stream = copying  # type: ignore[assignment]  # as on a GPU
    memory.make(Swap(to_host=True, pairs=((1, 3), (4, 0))))
    assert log == ["copying waits for computing", "on copying", "kept for copying"], "a step never waits for pages that leave"
    log.clear()
    for cache in caches:
        cache.zero_()
    memory.make(Swap(to_host=False, pairs=((2, 3), (0, 0))))
    assert log == ["on copying", "computing waits for copying", "kept for computing"]
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache[4:6], old[2:4]) and torch.equal(cache[0:2], old[8:10])
        assert not cache[2:4].any() and not cache[6:].any()
