"""Where a model's attention meets the paged KV: the runner plans a step, each layer then calls `forward`.

Models never see pages; schedulers never see tensors. `CpuAttention` is the plain torch backend, `tiled_attention` that for GPUs.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from branchpoint.kernels.attention import paged_attention
from branchpoint.kernels.layout import AttentionPlan, plan_attention
from branchpoint.kernels.reference import rope_write
from branchpoint.kernels.scratch import Scratch
from branchpoint.runtime.batch import Batch
from branchpoint.runtime.host_memory import HostMemory
from branchpoint.runtime.kv_pool import KvPool, kv_bytes_per_page
from branchpoint.runtime.models.base import Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.plan import Copy

__all__ = ["AttentionBackend", "CpuAttention", "kv_bytes_per_page"]


class AttentionBackend(Protocol):
    """Owns the KV pool of all layers, `num_pages` pages of `page_size` tokens, and computes attention over it.

    What is written to `spare_place` of a cache is never read. Behind it are `scratch_pages`, which nobody hands out.
    """

    num_pages: int
    page_size: int
    spare_place: int
    num_places: int

    @property
    def scratch_pages(self) -> range:
        """Numbers of pages for guesses."""

    def plan(self, batch: Batch) -> None:
        """Prepare for one step; `forward` works on this batch until the next plan."""

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        """See `models.base.LayerAttention`, for the tokens of the batch."""

    def copy_pages(self, copies: Sequence[Copy]) -> None:
        """Copy KV between pages, and between pages and host memory, in all layers, in order."""

    def attach(self, rows: Tensor) -> None:
        """Let `rows` [num_places or more, ...] be copied with the pages from now on."""

    def give_host_memory(self, num_slots: int) -> HostMemory:
        """A second tier of `num_slots` pages in host memory for this pool; `copy_pages` can swap with it from now on."""


class CpuAttention(KvPool):
    """Plain torch attention over a pool of `num_pages` pages; see `AttentionBackend`.

    Queries, keys and values are taken to the cache's `dtype`, and outputs have it. Named for where it is fast; it is right on
    every device. With `share` false each slot reads its keys for itself.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        share: bool = True,
        num_scratch: int = 0,
    ) -> None:
        super().__init__(config, num_pages, page_size, dtype, device, num_scratch=num_scratch)
        self._share = share
        self._scale = config.head_dim**-0.5
        self._scratch = Scratch(dtype, device)
        self._places = torch.empty(0, dtype=torch.int64, device=device)
        self._plan = AttentionPlan((), 0)

    def plan(self, batch: Batch) -> None:
        """See `AttentionBackend`."""
        self._places = batch.places
        self._plan = plan_attention(batch.table, self.dtype, self.device, share=self._share)

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        """See `AttentionBackend`."""
        cache = self.caches[layer_index]
        q = rope_write(qkv, rotation.cos, rotation.sin, norm, rotation.eps, cache, self._places)
        return paged_attention(q.to(self.dtype), cache, self._plan, self._scale, self._scratch)
