"""A step plan as tensors: what the model is fed, where its KV goes, which hidden states become logits.

Built once a step by the runner; models see tokens and positions, attention sees the rest.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from branchpoint.kernels.layout import SlotTable
from branchpoint.runtime.plan import StepPlan

__all__ = ["Batch", "build_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens`, `positions` and `places` (where in the cache their KV goes) are int64 [T]; `table` is what attention plans with.

    `rows` int64 [R] picks the hidden states whose logits are wanted; None where that is all of them.
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor
    rows: Tensor | None
    table: SlotTable


def build_batch(plan: StepPlan, page_size: int, device: torch.device) -> Batch:
    """Lay the plan's slots one after another."""
    tokens: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    rows: list[int] = []
    for slot in plan.slots:
        first = len(tokens) - slot.start
        end = slot.start + slot.count
        pages = slot.sequence.pages
        tokens += slot.tokens
        positions += range(slot.start, end)
        places += [pages[at // page_size] * page_size + at % page_size for at in range(slot.start, end)]
        rows += [first + position for position in slot.rows]
    table = SlotTable(
        [slot.sequence.pages for slot in plan.slots],
        [slot.start for slot in plan.slots],
        [slot.count for slot in plan.slots],
        page_size,
    )
    assert len(tokens) == plan.num_tokens, "a slot covers tokens that its sequence has"

    def placed(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    wanted = None if rows == list(range(len(tokens))) else placed(rows)
    return Batch(placed(tokens), placed(positions), placed(places), wanted, table)
