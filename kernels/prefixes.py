"""Finds the cached pages that several slots of a step have in common at their start, at every depth of a tree of forks.

Called once a step when attention is planned; the answer says which slots read which pages together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ["SharedPrefix", "find_shared_prefixes"]

WORTH_SHARING = 256
"""Cached tokens that must be saved (length times slots but one) before a part of its own and its merge pay."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Pages `first` to `last - 1` of each slot in `members` are the same."""

    members: tuple[int, ...]
    first: int
    last: int


def _saves_enough(members: Sequence[int], tokens: int) -> bool:
    return tokens * (len(members) - 1) >= WORTH_SHARING


def find_shared_prefixes(
    pages: Sequence[Sequence[int]],
    full: Sequence[int],
    page_size: int,
    pays: Callable[[Sequence[int], int], bool] = _saves_enough,
) -> tuple[list[SharedPrefix], list[int]]:
    """The shared runs of leading pages worth reading once, and for each slot the page where its own part begins.

    `pages[i]` are slot i's pages, of which the first `full[i]` may be shared. One slot may be in several runs, one after
    another, the first of them first: siblings of a fork share the fork's pages, and with their cousins the pages before it.
    `pays(members, tokens)` says whether it is worth while to read so many tokens once for these slots; by default, on a CPU,
    where enough reads are saved.
    """
    tables = [list(table[:count]) for table, count in zip(pages, full, strict=True)]
    begins = [0] * len(tables)
    found: list[SharedPrefix] = []
    order = sorted(range(len(tables)), key=tables.__getitem__)
    waiting = [(order, 0)] if len(order) > 1 else []
    while waiting:
        members, begin = waiting.pop()
        common = _common(tables[members[0]], tables[members[-1]])  # sorted: what the ends share, all share
        if common > begin and pays(members, (common - begin) * page_size):
            found.append(SharedPrefix(tuple(sorted(members)), begin, common))
            for member in members:
                begins[member] = common
            begin = common
        longer = [member for member in members if len(tables[member]) > common]
        for _, group in groupby(longer, key=lambda member, at=common: tables[member][at]):  # type: ignore[misc]  # bound at once
            siblings = list(group)
            if len(siblings) > 1:
                waiting.append((siblings, begin))
    return found, begins


def _common(left: list[int], right: list[int]) -> int:
    """How many leading entries are equal; halves compare as slices, so a long match costs little."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
