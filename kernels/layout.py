"""How one step's attention reads the KV cache: built once a step from page tables, used by every layer.

A plan is a list of parts, each one dense attention over query rows and cached tokens; parts that share query rows are merged
by log-sum-exp. Runs of consecutive pages become slices (views of the cache, no copy), everything else an index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import torch
from torch import Tensor

from branchpoint.kernels.prefixes import find_shared_prefixes
from branchpoint.kernels.tree import seen_guesses

__all__ = ["AttentionPlan", "Part", "SlotTable", "plan_attention"]

Index = slice | Tensor
"""Positions along a tensor's first dimension: a slice where they are consecutive, else int64 [N]."""

SMALL_COUNT = 64
"""Slots of at most so many query tokens are attended together in a padded batch, when their context is small as well."""

PADDED_TOKENS = 2048
"""Keys that one padded batch gathers, padding included: copying few of them costs less than a call for each slot."""


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Where the slots of a step lie: `pages[i]` holds tokens 0 to starts[i] + counts[i] - 1 of slot i, `page_size` a page.

    The query rows of the step are the slots' tokens from starts[i] on, counts[i] (at least 1) of each, one slot after another.
    Where there are `trees`, the last len(trees[i]) tokens of slot i are guesses of these depths (see `tree`), which see of each
    other only those that they stand behind.
    """

    pages: Sequence[Sequence[int]]
    starts: Sequence[int]
    counts: Sequence[int]
    page_size: int
    trees: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """Dense attention of a batch of `size` rectangles: `rows` are their query rows, `keys` the cached tokens, both in order.

    `mask` [size, 1, rows / size, keys / size] is added to the scores; without one every row sees every key, or, where `causal`,
    the last row sees all keys and each row before it one fewer. `kept` are the places among `rows` that are no padding, `target`
    the query rows they stand for. The first part of a row writes its output, later ones (`merge`) are merged into it.
    """

    rows: Index
    keys: Index
    target: Index
    size: int = 1
    causal: bool = False
    mask: Tensor | None = None
    kept: Tensor | None = None
    merge: bool = False


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The parts of one step in the order they must run; together they cover each of the `num_rows` query rows."""

    parts: tuple[Part, ...]
    num_rows: int

    @property
    def needs_merge(self) -> bool:
        """Whether log-sum-exps must be kept."""
        return any(part.merge for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One slot without its shared prefixes: queries `row` on, own keys from `begin` on."""

    row: int
    begin: int
    start: int
    count: int
    pages: Sequence[int]
    page_size: int
    tree: Sequence[int] = ()

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def own(self) -> int:
        """Keys that are no shared prefix."""
        return self.end - self.begin

    def rows(self) -> slice:
        return slice(self.row, self.row + self.count)

    def keys(self, begin: int, end: int) -> Index:
        """The cached tokens that hold positions begin to end - 1."""
        return _cached_tokens(self.pages, begin, end, self.page_size)


def plan_attention(table: SlotTable, dtype: torch.dtype, device: torch.device, *, share: bool = True) -> AttentionPlan:
    """Plan the attention of the slots in `table`: causal within each slot, over all that is cached of it.

    With `share`, cached pages that several slots have in common at their start are read once for all of them. `dtype` is
    that of the queries.
    """
    size, offset = table.page_size, 0
    full = [start // size for start in table.starts]
    shared, begins = find_shared_prefixes(table.pages, full, size) if share else ([], [0] * len(full))
    slots: list[_Slot] = []
    trees = table.trees or [()] * len(full)
    for pages, start, count, begin, tree in zip(table.pages, table.starts, table.counts, begins, trees, strict=True):
        slots.append(_Slot(offset, begin * size, start, count, pages, size, tree))
        offset += count
    parts = _own_parts(slots, dtype)
    for prefix in shared:
        rows = _joined([slots[member].rows() for member in prefix.members])
        keys = _cached_tokens(table.pages[prefix.members[0]], prefix.first * size, prefix.last * size, size)
        parts.append(Part(rows, keys, rows, merge=True))
    return AttentionPlan(tuple(_on_device(part, device) for part in parts), offset)


def _own_parts(slots: list[_Slot], dtype: torch.dtype) -> list[Part]:
    """The parts for what each slot has alone: small ones of like size padded together, the others one by one."""
    slots = [part for slot in slots for part in _apart(slot)]
    groups = [[slot] for slot in slots if slot.count > SMALL_COUNT]
    small = [slot for slot in slots if slot.count <= SMALL_COUNT]
    for _, alike in groupby(sorted(small, key=_size), key=lambda slot: _size(slot)[0]):
        group: list[_Slot] = []
        for slot in alike:
            if group and (slot.own * (len(group) + 1) > PADDED_TOKENS or slot.own > 2 * max(group[0].own, 64)):
                groups.append(group)
                group = []
            group.append(slot)
        groups.append(group)
    parts: list[Part] = []
    for group in groups:
        in_order = sorted(group, key=lambda slot: slot.row)
        parts += _single(group[0], dtype) if len(group) == 1 else [_padded(in_order, dtype)]
    return parts


def _apart(slot: _Slot) -> list[_Slot]:
    """A long slot and its tree as two: only the guesses need a mask, which has a number for each row and key."""
    certain = slot.count - len(slot.tree)
    if slot.count <= SMALL_COUNT or not slot.tree or not certain:
        return [slot]
    guesses = replace(slot, row=slot.row + certain, start=slot.start + certain, count=len(slot.tree))
    return [replace(slot, count=certain, tree=()), guesses]


def _size(slot: _Slot) -> tuple[int, int]:
    """Sorts slots so that neighbours go well together: queries to the next power of two, then own keys."""
    return _power_of_two(slot.count), slot.own


def _single(slot: _Slot, dtype: torch.dtype) -> list[Part]:
    """The parts of one slot by itself: one where it has few queries, else its cached tokens and its new ones apart."""
    rows = slot.rows()
    if slot.count == 1 or slot.tree or (slot.count <= SMALL_COUNT and slot.start > slot.begin):
        mask = None if slot.count == 1 else _causal_mask([slot], dtype)
        return [Part(rows, slot.keys(slot.begin, slot.end), rows, mask=mask)]
    parts = [Part(rows, slot.keys(slot.start, slot.end), rows, causal=True)]
    if slot.start > slot.begin:
        parts.append(Part(rows, slot.keys(slot.begin, slot.start), rows, merge=True))
    return parts


def _padded(slots: list[_Slot], dtype: torch.dtype) -> Part:
    """One part for several small slots. Padding repeats the slot's own last query and key, so that it is always finite."""
    rows = _rectangle([slot.rows() for slot in slots])
    keys = _rectangle([slot.keys(slot.begin, slot.end) for slot in slots]).view(-1)
    mask = _causal_mask(slots, dtype)
    target = _joined([slot.rows() for slot in slots])
    real = torch.arange(rows.shape[1]) < torch.tensor([slot.count for slot in slots])[:, None]
    if bool(real.all()):
        return Part(target, keys, target, size=len(slots), mask=mask)
    return Part(rows.view(-1), keys, target, size=len(slots), mask=mask, kept=real.view(-1).nonzero()[:, 0])


def _causal_mask(slots: list[_Slot], dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores [N, 1, most queries, most own keys]: minus infinity after the query, and at guesses that it
    doesn't stand behind; None where nothing is.
    """
    counts = torch.tensor([slot.count for slot in slots])[:, None]
    cached = torch.tensor([slot.start - slot.begin for slot in slots])[:, None]
    last = cached + torch.minimum(torch.arange(int(counts.max())), counts - 1)
    hidden = torch.arange(int((cached + counts).max())) > last[:, None, :, None]
    for number, slot in enumerate(slots):
        if slot.tree:
            row, key = slot.count - len(slot.tree), slot.own - len(slot.tree)
            hidden[number, 0, row : slot.count, key : slot.own] = ~torch.from_numpy(seen_guesses(slot.tree))
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf) if bool(hidden.any()) else None


def _rectangle(indices: Sequence[Index]) -> Tensor:
    """The indices as rows of one tensor, int64 [N, longest]; shorter ones repeat their last entry."""
    spans = [(each.start, each.stop) if isinstance(each, slice) else (0, len(each)) for each in indices]
    bounds = torch.tensor(spans)
    first, last = bounds[:, :1], bounds[:, 1:] - 1
    filled = torch.minimum(first + torch.arange(int((last - first).max()) + 1), last)
    for row, each in zip(filled, indices, strict=True):
        if not isinstance(each, slice):
            row.copy_(each[row])
    return filled


def _cached_tokens(pages: Sequence[int], begin: int, end: int, page_size: int) -> Index:
    """Places in the cache (page times page size plus offset) of positions begin to end - 1 of a slot."""
    first, last = begin // page_size, (end - 1) // page_size + 1
    used = list(pages[first:last])
    base = used[0]
    if used == list(range(base, base + len(used))):
        shift = base * page_size - first * page_size
        return slice(shift + begin, shift + end)
    places = torch.tensor(used).mul_(page_size)[:, None] + torch.arange(page_size)
    return places.view(-1)[begin - first * page_size : end - first * page_size]


def _joined(rows: list[slice]) -> Index:
    """The rows of several slots, one after another; a slice where that is one run."""
    if all(left.stop == right.start for left, right in pairwise(rows)):
        return slice(rows[0].start, rows[-1].stop)
    return torch.cat([torch.arange(each.start, each.stop) for each in rows])


def _power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()


def _on_device(part: Part, device: torch.device) -> Part:
    if device.type == "cpu":
        return part

    def moved(index: Index) -> Index:
        return index if isinstance(index, slice) else index.to(device)

    mask, kept = (None if tensor is None else tensor.to(device) for tensor in (part.mask, part.kept))
    return replace(part, rows=moved(part.rows), keys=moved(part.keys), target=moved(part.target), mask=mask, kept=kept)
