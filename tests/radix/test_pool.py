"""The rules of the page pool, and of what is checked against it."""

import pytest

from branchpoint.errors import BranchpointError
from branchpoint.radix import BlockPool, OutOfPages, PrefixKey, check_balance
from branchpoint.radix.key import common_prefix


def test_pages_come_consecutive_and_ascending() -> None:
    pool = BlockPool(8, 16)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(5) == [3, 4, 5, 6, 7]
    pool.release([1, 4, 5, 6])
    assert pool.allocate(3) == [4, 5, 6]
    assert pool.allocate(1) == [1]
    pool.check()


def test_where_no_run_is_long_enough_runs_are_joined_in_order() -> None:
    pool = BlockPool(9, 16)
    pool.allocate(9)
    pool.release([0, 2, 3, 5, 7, 8])
    assert pool.allocate(6) == [0, 2, 3, 5, 7, 8]
    pool.check()


def test_pages_follow_the_page_they_continue_where_they_can() -> None:
    pool = BlockPool(8, 16)
    pool.allocate(4)
    pool.release([0, 1])
    assert pool.allocate(2, after=3) == [4, 5]
    assert pool.allocate(1, after=3) == [0]
    assert pool.allocate(1, after=7) == [1]
    pool.check()


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(2)
    with pytest.raises(OutOfPages, match="Asked for 3 pages, but 2 of 4 are free") as caught:
        pool.allocate(3)
    assert isinstance(caught.value, BranchpointError) and isinstance(caught.value, MemoryError)
    assert (caught.value.asked, caught.value.free, caught.value.total, pool.num_free) == (3, 2, 4, 2)
    assert pool.allocate(0) == []


def test_a_page_is_free_when_its_last_holder_releases_it() -> None:
    pool = BlockPool(2, 16)
    pages = pool.allocate(1)
    pool.retain(pages)
    pool.release(pages)
    assert (pool.references(0), pool.num_free) == (1, 1)
    pool.release(pages)
    assert (pool.references(0), pool.num_free) == (0, 2)


def test_releasing_or_sharing_a_free_page_is_a_fault() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(AssertionError, match="page 1 was released more often"):
        pool.release([1])
    with pytest.raises(AssertionError, match="page 1 is free"):
        pool.retain([1])
    with pytest.raises(AssertionError, match="page 1 is free"):
        pool.cache([1])


def test_the_reference_of_the_cache_is_not_anyones_to_release() -> None:
    pool = BlockPool(2, 16)
    pages = pool.allocate(1)
    pool.cache(pages)
    assert (pool.num_cached, pool.num_idle) == (1, 0)
    pool.release(pages)
    assert (pool.num_cached, pool.num_idle) == (1, 1)
    with pytest.raises(AssertionError, match="page 0 was released more often"):
        pool.release(pages)
    assert pool.uncache(pages) == 1
    with pytest.raises(AssertionError, match="isn't cached"):
        pool.uncache(pages)


def test_the_balance_names_the_page_that_leaks() -> None:
    pool = BlockPool(4, 16)
    pages = pool.allocate(2)
    check_balance(pool, pages)
    with pytest.raises(AssertionError, match="page 1 has 1 references, 0 are known"):
        check_balance(pool, pages[:1])


def test_a_key_is_a_value() -> None:
    tokens = [1, 2, 3]
    key = PrefixKey("a", tokens)
    tokens.append(4)
    assert key == PrefixKey("a", (1, 2, 3)) != PrefixKey("b", (1, 2, 3))
    assert len(key) == 3 and len({key, PrefixKey("a", [1, 2, 3])}) == 1


@pytest.mark.parametrize("length", [0, 1, 2, 3, 31, 64, 100])
def test_the_common_prefix_is_found_wherever_it_ends(length: int) -> None:
    whole = list(range(length))
    for cut in range(length):
        other = [*whole[:cut], -1, *whole[cut + 1 :]]
        assert common_prefix(PrefixKey("", whole).packed, PrefixKey("", other).packed) == cut
    assert common_prefix(PrefixKey("", whole).packed, PrefixKey("", [*whole, 7]).packed) == length
