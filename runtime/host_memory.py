"""The bytes of the second KV tier: slots in host memory, one page of all layers in each, and the copies to and from the device.

`radix/host.py` decides which page lies in which slot; the runner makes its swaps here, in the plan's order. On CUDA the memory is
pinned and the copies run on streams of their own: a step waits for pages that it is about to read, never for others that leave.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from branchpoint.radix import Swap
from branchpoint.runtime.transfer import pinned, send

__all__ = ["HostMemory"]


class HostMemory:
    """`num_slots` slots for pages of `caches`, one tensor [num_pages * page_size, 2 Hkv, D] for each layer."""

    def __init__(self, num_slots: int, caches: Sequence[Tensor], page_size: int) -> None:
        self._device = caches[0].device
        self._pages = [cache.view(-1, page_size * cache.shape[1] * cache.shape[2]) for cache in caches]
        shape = (num_slots, len(caches), self._pages[0].shape[1])
        on_cuda = self._device.type == "cuda"
        self._slots = pinned(shape, caches[0].dtype) if on_cuda else torch.empty(shape, dtype=caches[0].dtype)
        self._streams = _Streams(self._device) if on_cuda else None

    @property
    def num_slots(self) -> int:
        """Pages that host memory holds."""
        return self._slots.shape[0]

    def make(self, swap: Swap) -> None:
        """Make the copies of one swap; what is computed next on the device's current stream sees them made."""
        (pages,) = send([np.array([page for page, _ in swap.pairs], np.int64)], self._device)
        slots = [slot for _, slot in swap.pairs]
        if self._streams is None:
            self._copy(pages, torch.tensor(slots), to_host=swap.to_host)
        elif swap.to_host:
            self._write(pages, slots, self._streams)
        else:
            self._read(pages, slots, self._streams)

    def seconds(self, num_pages: int, repeats: int = 3) -> float:
        """How long it takes to bring `num_pages` pages back: the best of some tries, onto pages that nobody uses yet."""
        count = min(num_pages, self.num_slots, self._pages[0].shape[0])
        swap = Swap(to_host=False, pairs=tuple((page, page) for page in range(count)))
        taken = []
        for _ in range(repeats):
            started = time.perf_counter()
            self.make(swap)
            if self._streams is not None:
                torch.cuda.synchronize(self._device)
            taken.append(time.perf_counter() - started)
        return min(taken)

    def _copy(self, pages: Tensor, slots: Tensor, *, to_host: bool) -> None:
        for layer, cache in enumerate(self._pages):
            if to_host:
                self._slots[slots, layer] = cache[pages]
            else:
                cache[pages] = self._slots[slots, layer]

    def _write(self, pages: Tensor, slots: list[int], streams: "_Streams") -> None:
        """Gather on the device at once, since the pages are about to be written over; let the bytes leave by and by."""
        staged = torch.stack([cache[pages] for cache in self._pages], dim=1)
        streams.out.wait_stream(torch.cuda.current_stream(self._device))
        streams.out.wait_stream(streams.back)  # which may still read what these slots held
        with torch.cuda.stream(streams.out):
            for number, slot in enumerate(slots):
                self._slots[slot].copy_(staged[number], non_blocking=True)
            streams.written |= dict.fromkeys(slots, streams.out.record_event())
        staged.record_stream(streams.out)

    def _read(self, pages: Tensor, slots: list[int], streams: "_Streams") -> None:
        """Behind the writes of the same slots, and no others; the step that reads these pages waits."""
        for written in {streams.written.pop(slot) for slot in slots if slot in streams.written}:
            streams.back.wait_event(written)
        with torch.cuda.stream(streams.back):
            staged = torch.empty((len(slots), *self._slots.shape[1:]), dtype=self._slots.dtype, device=self._device)
            for number, slot in enumerate(slots):
                staged[number].copy_(self._slots[slot], non_blocking=True)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(streams.back)
        staged.record_stream(current)
        for layer, cache in enumerate(self._pages):
            cache[pages] = staged[:, layer]


class _Streams:
    """`out` takes pages to the host, `back` brings them; `written`: the latest write of each slot that was not read since."""

    def __init__(self, device: torch.device) -> None:
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)
        self.written: dict[int, torch.cuda.Event] = {}
