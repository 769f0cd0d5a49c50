"""Where a model's attention meets the paged KV: the runner plans a step, each layer then calls `forward`.

Models never see pages; schedulers never see tensors. `CpuAttention` is the plain torch backend.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from branchpoint.kernels.attention import paged_attention
from branchpoint.kernels.layout import AttentionPlan, plan_attention
from branchpoint.kernels.reference import rope_write
from branchpoint.kernels.scratch import Scratch
from branchpoint.radix import Swap
from branchpoint.runtime.batch import Batch
from branchpoint.runtime.host_memory import HostMemory
from branchpoint.runtime.models.base import Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.plan import Copy, PageCopy

__all__ = ["AttentionBackend", "CpuAttention", "kv_bytes_per_page"]


class AttentionBackend(Protocol):
    """Owns the KV pool of all layers and computes attention over it."""

    def plan(self, batch: Batch) -> None:
        """Prepare for one step; `forward` works on this batch until the next plan."""

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        """See `models.base.LayerAttention`, for the tokens of the batch."""

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """Copy KV between pages, and between pages and host memory, in all layers, in order."""


def kv_bytes_per_page(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes in all layers, keys and values together."""
    return 2 * config.num_layers * page_size * config.num_kv_heads * config.head_dim * dtype.itemsize


class CpuAttention:
    """Plain torch attention over a pool of `num_pages` pages; see `AttentionBackend`.

    A layer's cache is one tensor [num_pages * page_size, 2 Hkv, D], a token's keys beside its values: one write, one gather, and
    consecutive pages are a view. Queries, keys and values are taken to the cache's `dtype`, and outputs have it. Named for where
    it is fast; it is right on every device.
    """

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.dtype = dtype
        self._device = device
        self._scale = config.head_dim**-0.5
        shape = (num_pages * page_size, 2 * config.num_kv_heads, config.head_dim)
        self._caches = [_zeros(shape, dtype, device) for _ in range(config.num_layers)]
        self._host: HostMemory | None = None
        self._scratch = Scratch(dtype, device)
        self._places = torch.empty(0, dtype=torch.int64, device=device)
        self._plan = AttentionPlan((), 0)

    def plan(self, batch: Batch) -> None:
        """See `AttentionBackend`."""
        self._places = batch.places
        self._plan = plan_attention(batch.table, self.dtype, self._device)

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        """See `AttentionBackend`."""
        cache = self._caches[layer_index]
        q = rope_write(qkv, rotation.cos, rotation.sin, norm, rotation.eps, cache, self._places)
        return paged_attention(q.to(self.dtype), cache, self._plan, self._scale, self._scratch)

    def give_host_memory(self, num_slots: int) -> HostMemory:
        """A second tier of `num_slots` pages in host memory for this pool; `copy_pages` can swap with it from now on."""
        self._host = HostMemory(num_slots, self._caches, self.page_size)
        return self._host

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """See `AttentionBackend`."""
        for is_swap, group in groupby(copies, key=lambda copy: isinstance(copy, Swap)):
            if is_swap:
                assert self._host is not None, "a swap without host memory"
                for copy in group:
                    assert isinstance(copy, Swap)
                    self._host.make(copy)
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
        sources = self._first_tokens([(copy.source, copy.count) for copy in copies])
        targets = self._first_tokens([(copy.target, copy.count) for copy in copies])
        for cache in self._caches:
            cache.index_copy_(0, targets, cache.index_select(0, sources))

    def _first_tokens(self, pages: Sequence[tuple[int, int]]) -> Tensor:
        """Places in the cache of the first `count` tokens of each (page, count), int64."""
        places = [page * self.page_size + at for page, count in pages for at in range(count)]
        return torch.tensor(places, dtype=torch.int64, device=self._device)


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A zeroed tensor; on the CPU its memory is only taken as pages are first written, so that a large pool costs nothing yet."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = shape[0] * shape[1] * shape[2] * dtype.itemsize
    return torch.from_numpy(np.zeros(size, dtype=np.uint8)).view(dtype).view(shape)
