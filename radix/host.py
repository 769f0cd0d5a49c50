"""The second tier: slots in host memory that hold pages which had to leave the device, and the copies between the two.

Only bookkeeping. The tree decides what moves and when; the runtime takes the plans, copies in their order, and settles them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from branchpoint.radix.pool import BlockPool

__all__ = ["CopyCost", "HostTier", "Swap"]


@dataclass(frozen=True, slots=True)
class Swap:
    """Copies that can be made at once: whole pages, `pairs` of (device page, host slot), each page once, no slot written twice.

    `to_host` is the direction. Swaps must be made one after another in the order in which they were planned.
    """

    to_host: bool
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Whether bringing pages back pays: seconds as measured at start.

    `fixed` is what any copy costs, `page` what each page adds, `token` what computing a token costs instead.
    """

    fixed: float
    page: float
    token: float

    def is_worth(self, num_pages: int, num_tokens: int) -> bool:
        """Whether copying `num_pages` pages takes less time than computing the `num_tokens` tokens that they spare."""
        return num_pages > 0 and self.fixed + self.page * num_pages < self.token * num_tokens


class HostTier:
    """`num_slots` slots of a page each, numbered from 0. `pool` counts who holds them: the tree, handles, copies not settled."""

    def __init__(self, num_slots: int, page_size: int) -> None:
        self.pool = BlockPool(num_slots, page_size)
        self._planned: list[tuple[bool, list[tuple[int, int]]]] = []
        self._pages: set[int] = set()  # of the last one planned
        self._taken: list[Swap] = []

    @property
    def held(self) -> list[int]:
        """The slots that copies hold until they are settled, one entry for each reference."""
        planned = [slot for _, pairs in self._planned for _, slot in pairs]
        return planned + [slot for swap in self._taken for _, slot in swap.pairs]

    @property
    def has_unsettled(self) -> bool:
        """Whether any copy was planned and not yet settled."""
        return bool(self._planned or self._taken)

    def write(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        """Plan to copy `pages` to `slots`, freshly allocated: their reference becomes the copy's."""
        self._plan(pages, slots, to_host=True)

    def read(self, slots: Sequence[int], pages: Sequence[int]) -> None:
        """Plan to copy `slots`, which somebody holds, to `pages`."""
        self.pool.retain(slots)
        self._plan(pages, slots, to_host=False)

    def take(self) -> tuple[Swap, ...]:
        """The copies planned since the last call; hand each back to `settle`."""
        swaps = tuple(Swap(to_host, tuple(pairs)) for to_host, pairs in self._planned)
        self._planned.clear()
        self._taken += swaps
        return swaps

    def settle(self, swaps: Iterable[Swap]) -> None:
        """These copies were made, or never will be: their slots are let go of."""
        for swap in swaps:
            self._taken.remove(swap)
            self.pool.release([slot for _, slot in swap.pairs])

    def _plan(self, pages: Sequence[int], slots: Sequence[int], *, to_host: bool) -> None:
        if not slots:
            return
        if not self._planned or self._planned[-1][0] != to_host or not self._pages.isdisjoint(pages):
            self._planned.append((to_host, []))
            self._pages.clear()
        self._planned[-1][1].extend(zip(pages, slots, strict=True))
        self._pages.update(pages)
