"""What drafting has come to, for `stats`, metrics and reports: by drafter, and by place in the draft.

Kept by `Speculation` since the start, and for each sample by itself; nothing is decided by it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from branchpoint.runtime.messages import DrafterStats

__all__ = ["PLACES", "Tally", "advice"]

PLACES = 16
"""Places in a draft that are told apart; later ones count as the last of them."""


@dataclass(slots=True)
class _Count:
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    tested: list[int] = field(default_factory=lambda: [0] * PLACES)
    right: list[int] = field(default_factory=lambda: [0] * PLACES)
    failure: str | None = None


class Tally:
    """Counts of the drafters of these names, and of others that are told of."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._counts = {name: _Count() for name in names}

    def add(self, name: str, agreed: int, verified: int, places: int | None = None) -> None:
        """A draft of `verified` guesses, of which those at the first `agreed` places were right; of so many `places` as guesses,
        where none is told.
        """
        count = self._counts.setdefault(name, _Count())
        count.drafts += 1
        count.drafted += verified
        count.accepted += agreed
        for place in range(verified if places is None else places):
            at = min(place, PLACES - 1)
            count.tested[at] += 1
            count.right[at] += place < agreed

    def fail(self, name: str, reason: str) -> None:
        """The drafter is asked no more."""
        self._counts[name].failure = reason

    def stats(self) -> tuple[DrafterStats, ...]:
        """Everything so far, in the chain's order."""
        found = []
        for name, count in self._counts.items():
            places = tuple((tested, right) for tested, right in zip(count.tested, count.right, strict=True) if tested)
            found.append(DrafterStats(name, count.drafts, count.drafted, count.accepted, places, count.failure))
        return tuple(found)


def advice(stats: tuple[DrafterStats, ...]) -> list[str]:
    """What to say to a user of these counts: which drafters don't pay, and which have failed."""
    found = []
    for each in stats:
        if each.failure:
            found.append(f"The drafter {each.name} failed and is asked no more: {each.failure}")
        elif each.is_poor:
            share = each.accepted / each.drafted
            found.append(f"The drafter {each.name} doesn't pay: {share:.0%} of {each.drafted} guesses were right; leave it out.")
    return found
