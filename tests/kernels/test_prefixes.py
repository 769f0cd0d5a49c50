"""Shared prefixes are found at every depth, and only where they pay."""

import random

from branchpoint.kernels.prefixes import SharedPrefix, find_shared_prefixes


def _find(pages: list[list[int]], page_size: int = 16) -> tuple[set[SharedPrefix], list[int]]:
    found, begins = find_shared_prefixes(pages, [len(table) for table in pages], page_size)
    return set(found), begins


def test_one_trunk_is_one_prefix_of_all() -> None:
    trunk = list(range(20))
    found, begins = _find([[*trunk, 100 + i] for i in range(4)])
    assert found == {SharedPrefix((0, 1, 2, 3), 0, 20)}
    assert begins == [20] * 4


def test_branches_are_found_below_their_trunk() -> None:
    trunk, left, right = list(range(20)), list(range(50, 70)), list(range(80, 100))
    tables = [[*trunk, *side, 200 + i] for i, side in enumerate([left, right, left, right])]
    found, begins = _find(tables)
    assert found == {SharedPrefix((0, 1, 2, 3), 0, 20), SharedPrefix((0, 2), 20, 40), SharedPrefix((1, 3), 20, 40)}
    assert begins == [40] * 4


def test_a_trunk_too_short_by_itself_counts_with_its_branch() -> None:
    tables = [[1, *range(50, 70)], [1, *range(50, 70)], [1, 7]]
    found, begins = _find(tables)
    assert found == {SharedPrefix((0, 1), 0, 21)}
    assert begins == [21, 21, 0]


def test_nothing_is_shared_beyond_the_full_pages_of_each() -> None:
    table = list(range(40))
    found, begins = find_shared_prefixes([table, table, table], [40, 30, 0], 16)
    assert found == [SharedPrefix((0, 1), 0, 30)]
    assert begins == [30, 30, 0]


def test_short_or_lonely_prefixes_are_left_alone() -> None:
    assert _find([[1, 2], [1, 2], [3]]) == (set(), [0, 0, 0])
    assert _find([list(range(500))]) == (set(), [0])
    assert _find([]) == (set(), [])


def test_random_forests_are_covered_once_and_truly_shared() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        tables: list[list[int]] = []
        for _ in range(rng.randint(2, 20)):
            parent = rng.choice(tables)[: rng.randint(0, 60)] if tables and rng.random() < 0.8 else []
            tables.append(parent + [rng.randrange(10**9) for _ in range(rng.randint(0, 40))])
        found, begins = _find(tables, rng.choice([1, 16, 128]))
        covered: list[list[tuple[int, int]]] = [[] for _ in tables]
        for prefix in found:
            first = tables[prefix.members[0]]
            assert len(prefix.members) > 1
            for member in prefix.members:
                assert tables[member][: prefix.last] == first[: prefix.last]
                covered[member].append((prefix.first, prefix.last))
        for spans, begin in zip(covered, begins, strict=True):
            ordered = sorted(spans)
            assert [end for _, end in ordered[:-1]] == [start for start, _ in ordered[1:]]
            assert (ordered[0][0], ordered[-1][1]) == (0, begin) if ordered else begin == 0
