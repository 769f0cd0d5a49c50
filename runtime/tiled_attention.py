"""The attention backend for GPUs: Triton kernels over tiles, page tables that stay on the device, shared prefixes read once.

`plan` sends a step's numbers in one copy and waits for nothing; plans with the same `plan_key` lie at the same addresses, so that
a graph captured for one serves the other.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from branchpoint.kernels.laying import lay_tiles, plan_tiles
from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.operations import triton_operations
from branchpoint.kernels.paged import paged_attention
from branchpoint.kernels.prefixes import SharedPrefix
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.sharing import find_worthwhile_prefixes
from branchpoint.kernels.tiles import TilePlan, TileShape
from branchpoint.runtime.batch import Batch
from branchpoint.runtime.kv_pool import KvPool
from branchpoint.runtime.models.base import Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.page_tables import PageTables
from branchpoint.runtime.transfer import send

__all__ = ["TiledAttention"]

SPARE_PAGES = 64
"""Pages that a table has room for beyond the context's, for drafts at its end."""


class TiledAttention(KvPool):
    """Attention over a pool on a GPU; see `attention.AttentionBackend`. At most `max_sequences` slots a step.

    `dtype` is the cache's; a float8_e4m3fn one holds keys and values divided by `scales`, float32 [2 Hkv] of each layer, which
    begin at one. Queries and outputs have `query_dtype`. Runs in Triton's interpreter where the device is a CPU. With `share`
    false each slot reads its keys for itself.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        query_dtype: torch.dtype,
        max_sequences: int,
        share: bool = True,
        num_scratch: int = 0,
    ) -> None:
        super().__init__(config, num_pages, page_size, dtype, device, num_scratch=num_scratch)
        shape = TileShape(config.num_heads, config.num_kv_heads, config.head_dim, query_dtype, dtype, page_size)
        self._shape = shape if device.type != "cuda" else _on(shape, torch.cuda.get_device_properties(device))
        self._scale = config.head_dim**-0.5
        self._scratch = Scratch(query_dtype, device)
        self._rope_write = triton_operations().rope_write
        width = min(num_pages + num_scratch, -(-config.context_length // page_size) + SPARE_PAGES)
        self._tables = PageTables(max_sequences, width, device)
        self._buffers: dict[int, Tensor] = {}  # by size: a plan's place depends on its key alone
        self._places = torch.empty(0, dtype=torch.int64, device=device)
        self._plan: TilePlan | None = None
        self.share = share
        self._shared: tuple[SharedPrefix, ...] = ()
        self._shared_of: tuple[object, ...] = ()
        self.scales = [torch.ones(2 * config.num_kv_heads, device=device) if dtype.itemsize == 1 else None for _ in self.caches]

    @property
    def plan_key(self) -> tuple[int, ...]:
        """What a captured graph of the step that was planned last can be replayed for: all plans with an equal key."""
        return () if self._plan is None else self._plan.key

    def warm_up(self, *, trees: bool = False) -> None:
        """Have all forms of the kernels compiled that a step may need: an engine that serves waits for no compiler.

        With `trees` drafts may be some.
        """
        group, long = self._shape.group, 16 * 1024
        counts = [1, *(max(1, (tiling.rows + group) // group) for tiling in self._shape.sizes[:2])]
        pages = [0] * (-(-long // self.page_size))
        table = SlotTable([pages] * len(counts), [long - count for count in counts], counts, self.page_size)
        q = torch.zeros(sum(counts), self._shape.heads, self._shape.head_dim, dtype=self._shape.dtype, device=self.device)
        for each in (table, replace(table, trees=[()] * len(counts)))[: 1 + trees]:
            plan = plan_tiles(each, self._shape, self.device, share=False)
            paged_attention(q, self.caches[0], plan, self._scale, self._scratch, self.scales[0])

    def plan(self, batch: Batch) -> None:
        """See `AttentionBackend`."""
        table = batch.table
        self._places = batch.places
        offsets = self._tables.place(table.pages)
        tiles = lay_tiles(table, offsets, self._shape, self._prefixes(table, offsets))
        buffer = self._buffer(tiles.size)
        (sent,) = send([tiles.numbers()], self.device)
        buffer.copy_(sent)
        self._plan = tiles.on(buffer, self._tables.flat)

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        """See `AttentionBackend`."""
        assert self._plan is not None, "a step is planned before it is computed"
        cache, scales = self.caches[layer_index], self.scales[layer_index]
        q = self._rope_write(qkv, rotation.cos, rotation.sin, norm, rotation.eps, cache, self._places, scales)
        return paged_attention(q, cache, self._plan, self._scale, self._scratch, scales)

    def _buffer(self, size: int) -> Tensor:
        """Memory for a plan of `size` numbers, the same for all of that size."""
        room = 1 << (size - 1).bit_length()
        if room not in self._buffers:
            self._buffers[room] = torch.zeros(room, dtype=torch.int32, device=self.device)
        return self._buffers[room][:size]

    def _prefixes(self, table: SlotTable, offsets: NDArray[np.int64]) -> Sequence[SharedPrefix]:
        """What slots share and had better read once. Found anew only where slots came, went or changed other than by growing."""
        if not self.share or len(table.pages) < 2:
            return ()
        sizes = tuple(count.bit_length() for count in table.counts)
        of = (self._tables.version, offsets.tobytes(), sizes)
        if of != self._shared_of:
            self._shared_of, self._shared = of, tuple(find_worthwhile_prefixes(table, self._shape))
        return self._shared


def _on(shape: TileShape, device: "torch.cuda._CudaDeviceProperties") -> TileShape:
    """The shape with what this device has of everything."""
    most = getattr(device, "shared_memory_per_block_optin", shape.shared_memory)  # torch's own types leave it out
    return replace(shape, multiprocessors=device.multi_processor_count, shared_memory=most)
