"""Whether the next in line may have pages: those that nobody uses, less what running sequences and older programs will need.

Asked by the scheduler, between its order of admission and the cache. Holding back is soft: nobody is while nothing runs, nor is
the first in line for more than `HELD_PLANS` plans in which nobody was admitted.
"""

from collections.abc import Collection
from dataclasses import dataclass

from branchpoint.radix import Standing
from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.policy import AdmissionOrder
from branchpoint.runtime.sequence import Sequence

__all__ = ["HELD_PLANS", "Room"]

HELD_PLANS = 4


@dataclass(frozen=True, slots=True)
class _Refusal:
    """`pages` were not enough, leaving alone what is awaited with more than `standing`."""

    pages: int
    standing: Standing | None


class Room:
    """The pages of `cache` for what waits in `order`; remembers a refusal until something has changed."""

    def __init__(self, cache: KVCache, order: AdmissionOrder) -> None:
        self._cache = cache
        self._order = order
        self._refusal: _Refusal | None = None
        self._held = 0  # plans that held the first in line back, since anybody was admitted
        self._reserved = 0

    def forget(self) -> None:
        """Another may be first in line now, or may fit."""
        self._refusal = None

    def look(self, running: Collection[Sequence]) -> bool:
        """A plan is made beside `running`: whether it's worth asking for anybody, since things have changed."""
        self._reserved = sum(self._cache.missing(sequence) for sequence in running)
        refusal, self._refusal = self._refusal, None
        if refusal is None or (refusal.standing and not self._holds(running)) or self._spare(refusal.standing) > refusal.pages:
            return True
        self._refuse(refusal.standing)
        return False

    def admit(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give `sequence` the pages of its cached prefix, where those for the rest can be had too."""
        standing = self._order.yields_to(sequence) if self._holds(running) else None
        spared = self._cache.num_available - self._reserved - self._spare(standing)
        if not self._cache.admit(sequence, self._reserved + spared):
            self._refuse(standing if spared else None)
            return False
        self._held = 0
        return True

    def reserve(self, sequence: Sequence) -> None:
        """`sequence` runs from now on and will need more."""
        self._reserved += self._cache.missing(sequence)

    def _holds(self, running: Collection[Sequence]) -> bool:
        return bool(running) and self._held < HELD_PLANS

    def _refuse(self, standing: Standing | None) -> None:
        self._held += standing is not None
        self._refusal = _Refusal(self._spare(standing), standing)

    def _spare(self, standing: Standing | None) -> int:
        """Pages that nobody needs who comes before this standing."""
        awaited = self._cache.tree.num_awaited(standing) if standing else 0
        return self._cache.num_available - self._reserved - awaited
