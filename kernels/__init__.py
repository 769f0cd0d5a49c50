"""Tensors in, tensors out. Every operation has a plain torch form; torch and triton only.

A step's attention is planned once from its `SlotTable` (`plan_attention` gives an `AttentionPlan`), then each layer calls
`write_kv` and `paged_attention`; prefixes that slots share are found by `find_shared_prefixes` and merged by `merge_parts`.
`rms_norm`, `add_rms_norm`, `rope` and `silu_mul` are the small operations of a layer; `gumbel_noise`, `keep_best` and
`first_argmax` draw tokens.

On a GPU `laying.plan_tiles` plans and `paged.paged_attention` attends, with the same arguments; they are imported by name, since
they load triton. What is shared is found in the same way, and chosen by `sharing.SharingRule`. `operations.operations_for` gives
a device its forms of the small operations; `draw`, `logprobs` and `adjust` are the forms of `drawing.draw_rows` and of
`reference.top_logits` and `reference.adjust_logits`, for all rows of a step at once.
"""

from branchpoint.kernels.attention import attend, paged_attention, write_kv
from branchpoint.kernels.layout import AttentionPlan, SlotTable, plan_attention
from branchpoint.kernels.prefixes import SharedPrefix, find_shared_prefixes
from branchpoint.kernels.reference import add_rms_norm, rms_norm, rope, rope_rotate, rope_tables, silu_mul
from branchpoint.kernels.sample import first_argmax, gumbel_noise, keep_best
from branchpoint.kernels.scratch import Scratch
from branchpoint.kernels.shared_prefix import merge_parts

__all__ = [
    "AttentionPlan",
    "Scratch",
    "SharedPrefix",
    "SlotTable",
    "add_rms_norm",
    "attend",
    "find_shared_prefixes",
    "first_argmax",
    "gumbel_noise",
    "keep_best",
    "merge_parts",
    "paged_attention",
    "plan_attention",
    "rms_norm",
    "rope",
    "rope_rotate",
    "rope_tables",
    "silu_mul",
    "write_kv",
]
