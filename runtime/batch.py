"""A step plan as tensors: what the model is fed, where its KV goes, which hidden states become logits.

Built once a step by the runner; models see tokens and positions, attention sees the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from branchpoint.kernels.layout import SlotTable
from branchpoint.runtime.plan import StepPlan
from branchpoint.runtime.transfer import send

__all__ = ["Batch", "Padding", "build_batch"]


@dataclass(frozen=True, slots=True)
class Batch:
    """`inputs` int64 [3, T] are tokens, positions and places (where in the cache their KV goes); `table` is what attention plans
    with. `rows` int64 [R] picks the hidden states whose logits are wanted; None where that is all of them.
    """

    inputs: Tensor
    rows: Tensor | None
    table: SlotTable

    @property
    def tokens(self) -> Tensor:
        """int64 [T]."""
        return self.inputs[0]

    @property
    def positions(self) -> Tensor:
        """int64 [T]."""
        return self.inputs[1]

    @property
    def places(self) -> Tensor:
        """int64 [T], all different but for padding."""
        return self.inputs[2]


@dataclass(frozen=True, slots=True)
class Padding:
    """A batch is to have `size` tokens; those that no slot has are written to `place` of the cache."""

    size: int
    place: int


def build_batch(plan: StepPlan, page_size: int, device: torch.device, padding: Padding | None = None) -> Batch:
    """Lay the plan's slots one after another, then the padding. Tokens that are still to be drawn are left for the caller."""
    tokens: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    rows: list[int] = []
    for slot in plan.slots:
        begin, start, pages = len(positions), slot.start, slot.sequence.pages
        if slot.count == 1:  # most slots of most steps: what this costs a slot is what decoding costs the host
            positions.append(start)
            places.append(pages[start // page_size] * page_size + start % page_size)
        else:
            lies = range(start, start + slot.count)
            positions += map(slot.position_of, lies) if slot.depths else lies
            places += _places(pages, start, slot.count, page_size)
        tokens += slot.tokens or [0]
        rows += [begin - start + position for position in slot.rows]
    count = len(positions)
    total = count if padding is None else padding.size
    inputs = np.zeros((3, total), np.int64)
    inputs[0, :count] = tokens
    inputs[1, :count] = positions
    inputs[2, :count] = places
    if padding is not None:
        inputs[2, count:] = padding.place
    table = SlotTable(
        [slot.sequence.pages for slot in plan.slots],
        [slot.start for slot in plan.slots],
        [slot.count for slot in plan.slots],
        page_size,
        [slot.depths for slot in plan.slots] if any(slot.depths for slot in plan.slots) else (),
    )
    if rows == list(range(total)):
        return Batch(send([inputs], device)[0], None, table)
    sent, wanted = send([inputs, np.array(rows, np.int64)], device)
    return Batch(sent, wanted, table)


def _places(pages: Sequence[int], start: int, count: int, page_size: int) -> list[int]:
    """Where in the cache the positions from `start` on lie."""
    positions = np.arange(start, start + count)
    first = start // page_size
    held = np.array(pages[first : (start + count - 1) // page_size + 1], np.int64)
    placed: list[int] = (held[positions // page_size - first] * page_size + positions % page_size).tolist()
    return placed
