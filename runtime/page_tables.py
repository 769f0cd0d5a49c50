"""The page tables of running sequences on the device, kept from step to step: what grows by a page a step isn't sent anew.

The GPU's attention backend places a step's tables here; tiles then say where a slot's table begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from branchpoint.runtime.transfer import send

__all__ = ["PageTables"]


@dataclass(slots=True)
class _Row:
    """What row `number` holds of the list `pages` (kept, so that its identity stays its own)."""

    number: int
    pages: Sequence[int]
    held: list[int] = field(default_factory=list)


class PageTables:
    """`num_rows` tables of at most `width` pages. `flat` int32 [num_rows * width] is on the device, always at the same address.

    `version` changes whenever a table came new or changed otherwise than by growing.
    """

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self.flat = torch.zeros(num_rows * width, dtype=torch.int32, device=device)
        self.version = 0
        self._num_rows = num_rows
        self._width = width
        self._rows: dict[int, _Row] = {}  # by identity of the list, those used longest ago first
        self._free = list(range(num_rows))

    def place(self, tables: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """See that the device has these tables, at most `num_rows` different ones; returns where each begins in `flat`.

        A sequence is known by the identity of its list; one that was given another list is another.
        """
        assert len(tables) <= self._num_rows, "a step has more slots than sequences may run"
        known = [self._rows.pop(id(pages), None) for pages in tables]
        rows: list[_Row] = []
        for pages, row in zip(tables, known, strict=True):
            if row is not None:
                self._rows[id(pages)] = row
        for pages, row in zip(tables, known, strict=True):
            rows.append(self._rows.get(id(pages)) or self._new_row(pages) if row is None else row)
        changes = [change for row in rows if row.held != row.pages for change in self._changes(row)]
        if changes:
            self._send(changes)
        return np.array([row.number for row in rows], np.int64) * self._width

    def _new_row(self, pages: Sequence[int]) -> _Row:
        if not self._free:
            self._free.append(self._rows.pop(next(iter(self._rows))).number)
        row = self._rows[id(pages)] = _Row(self._free.pop(), pages)
        self.version += 1
        return row

    def _changes(self, row: _Row) -> list[tuple[int, list[int]]]:
        """What must be written where in `flat`: pages behind those that the row has, or all of them."""
        count, pages = len(row.held), list(row.pages)
        assert len(pages) <= self._width, "a sequence has more pages than its context needs"
        if pages[:count] != row.held:
            count = 0
            self.version += 1
        row.held = pages
        return [(row.number * self._width + count, pages[count:])] if len(pages) > count else []

    def _send(self, changes: Sequence[tuple[int, list[int]]]) -> None:
        """One copy to the device and one write there, however many rows changed."""
        pages = np.array([page for _, added in changes for page in added], np.int32)
        places = np.concatenate([np.arange(at, at + len(added), dtype=np.int64) for at, added in changes])
        self.flat.index_copy_(0, *send([places, pages], self.flat.device))
