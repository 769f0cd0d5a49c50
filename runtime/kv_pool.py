"""The KV of all layers on the device: one pool of pages, copies between them, and a second tier in host memory.

The attention backends are such pools that can also attend; the scheduler's page numbers mean pages of this one.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from branchpoint.radix import Swap
from branchpoint.runtime.host_memory import HostMemory
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.plan import Copy, PageCopy, TokenMove
from branchpoint.runtime.transfer import send

__all__ = ["KvPool", "kv_bytes_per_page"]


def kv_bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes in all layers, keys and values together."""
    return 2 * config.num_layers * page_size * config.num_kv_heads * config.head_dim * dtype.itemsize


class KvPool:
    """`num_pages` pages of `dtype`, a spare one at `spare_place` that nobody reads, and `num_scratch` more for guesses.

    A layer's cache is one tensor [num_places, 2 Hkv, D], a token's keys beside its values: one write, one gather, and consecutive
    pages are a view.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_scratch: int = 0,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self.spare_place = num_pages * page_size
        self.num_places = self.spare_place + page_size * (1 + num_scratch)
        shape = (self.num_places, 2 * config.num_kv_heads, config.head_dim)
        self.caches = [_zeros(shape, dtype, device) for _ in range(config.num_layers)]
        self._host: HostMemory | None = None
        self._attached: list[Tensor] = []

    @property
    def _movable(self) -> list[Tensor]:
        """The caches in a type that can be indexed: torch only stores 8-bit floats."""
        return [cache.view(torch.uint8) for cache in self.caches] if self.dtype.itemsize == 1 else self.caches

    @property
    def scratch_pages(self) -> range:
        """The numbers of the pages for guesses."""
        return range(self.num_pages + 1, self.num_places // self.page_size)

    def attach(self, rows: Tensor) -> None:
        """Let `rows` [num_places or more, ...] be copied with the pages from now on; they don't go to host memory."""
        self._attached.append(rows)

    def give_host_memory(self, num_slots: int) -> HostMemory:
        """A second tier of `num_slots` pages in host memory for this pool; `copy_pages` can swap with it from now on."""
        self._host = HostMemory(num_slots, self._movable, self.page_size)
        return self._host

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """Copy KV between pages, and between pages and host memory, in all layers, in order."""
        for kind, group in groupby(copies, key=type):
            if kind is Swap:
                assert self._host is not None, "a swap without host memory"
                for copy in group:
                    assert isinstance(copy, Swap)
                    self._host.make(copy)
            elif kind is TokenMove:
                moves = [copy for copy in group if isinstance(copy, TokenMove)]
                self._copy([at for move in moves for at in move.sources], [at for move in moves for at in move.targets])
            else:
                self._copy_within([copy for copy in group if isinstance(copy, PageCopy)])

    def _copy_within(self, copies: Sequence[PageCopy]) -> None:
        if {copy.source for copy in copies} & {copy.target for copy in copies}:  # one feeds another: not all at once
            for copy in copies:
                self._copy_at_once([copy])
        else:
            self._copy_at_once(copies)

    def _copy_at_once(self, copies: Sequence[PageCopy]) -> None:
        """Copy between pages of which none is both source and target."""
        self._copy(
            self._first_tokens([(copy.source, copy.count) for copy in copies]),
            self._first_tokens([(copy.target, copy.count) for copy in copies]),
        )

    def _first_tokens(self, pages: Sequence[tuple[int, int]]) -> list[int]:
        """Places in the cache of the first `count` tokens of each (page, count)."""
        return [page * self.page_size + at for page, count in pages for at in range(count)]

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy between places of the cache; all sources are read before any target is written."""
        read, written = send([np.array(places, np.int64) for places in (sources, targets)], self.device)
        for cache in (*self._movable, *self._attached):
            cache.index_copy_(0, written, cache.index_select(0, read))


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor; on the CPU its memory is only taken as pages are first written, so that a large pool costs nothing yet."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
