"""Random steps for the tests of attention."""

import random

from branchpoint.kernels.layout import SlotTable

__all__ = ["random_slots", "random_tree", "way_to"]


def random_slots(rng: random.Random, size: int, *, most: int = 12, depth: int = 2000, longest: int = 300) -> SlotTable:
    """At most `most` slots that are leaves of a random tree of pages of `size` tokens, with decode, drafts and chunks among them.

    Branches have up to `depth` tokens, chunks up to `longest`.
    """
    ids = iter(range(10**6))

    def some(tokens: int) -> list[int]:
        return [next(ids) for _ in range(rng.randint(0, tokens) // size)]

    pages, starts, counts = [], [], []
    stems = [some(depth) for _ in range(2)]
    for _ in range(rng.randint(1, most)):
        stem = rng.choice(stems)
        if rng.random() < 0.4:
            stems.append(stem := stem + some(depth // 2))
        counts.append(min(longest, rng.choice([1, 1, 1, 2, 5, 17, 130, 300])))
        starts.append(len(stem) * size + rng.randrange(40))
        need = -(-(starts[-1] + counts[-1]) // size)
        pages.append(stem + [next(ids) for _ in range(need - len(stem))])
    return SlotTable(pages, starts, counts, size)


def random_tree(rng: random.Random, count: int) -> tuple[int, ...]:
    """The depths of `count` guesses."""
    depths: list[int] = []
    for _ in range(count):
        depths.append(rng.choice([len(depths) and depths[-1] + 1, rng.randint(0, depths[-1] + 1 if depths else 0)]))
    return tuple(depths)


def way_to(depths: tuple[int, ...], guess: int) -> list[int]:
    """The guesses that one stands behind, and itself, by looking back from each for the nearest that is one less deep."""
    way = [guess]
    while depths[way[0]]:
        way.insert(0, max(other for other in range(way[0]) if depths[other] == depths[way[0]] - 1))
    return way
