"""The rules of the second tier, one by one; that contents stay right is what `test_machine.py` holds."""

import pytest

from branchpoint.radix import BlockPool, CopyCost, HostTier, PrefixKey, RadixTree, check_balance

SIZE = 4


class Cache:
    """A tree over both tiers, and a clock that ticks."""

    def __init__(self, slots: int = 8) -> None:
        self.now = 0.0
        self.pool = BlockPool(32, SIZE)
        self.host = HostTier(slots, SIZE)
        self.tree = RadixTree(self.pool, clock=self.clock, host=self.host)

    def clock(self) -> float:
        self.now += 1
        return self.now

    def store(self, tokens: list[int], priority: int = 0) -> PrefixKey:
        key = PrefixKey("", tokens)
        own = self.pool.allocate(-(-len(tokens) // SIZE))
        self.tree.insert(key, own, priority=priority)
        self.pool.release(own)
        return key

    def reach(self, key: PrefixKey) -> tuple[int, int]:
        """Tokens found on the device, and in both tiers."""
        return self.tree.peek(key), self.tree.peek(key, host=True)

    def step(self) -> list[tuple[bool, tuple[tuple[int, int], ...]]]:
        swaps = self.tree.take_swaps()
        self.tree.settle(swaps)
        self.check()
        return [(swap.to_host, swap.pairs) for swap in swaps]

    def check(self) -> None:
        self.tree.check()
        self.pool.check()
        self.host.pool.check()
        check_balance(self.host.pool, self.host.held)


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_evicted_pages_are_found_in_host_memory(cache: Cache) -> None:
    key = cache.store(list(range(10)))
    assert cache.tree.evict(2) == 2
    assert cache.reach(key) == (4, 10)
    assert (cache.tree.num_pages, cache.tree.num_host_pages, cache.tree.num_tokens) == (1, 2, 10)
    assert cache.step() == [(True, ((1, 0), (2, 1)))]
    with cache.tree.match(PrefixKey("", [*range(10), 99])) as handle:
        assert (handle.num_tokens, handle.pages, handle.tail) == (4, (0,), None)
        assert (handle.host.end, handle.host.slots, handle.host.tail) == (10, (0,), (1, 2))
        assert handle.host.held == (0, 1)
        check_balance(cache.host.pool, handle.host.held)
    with cache.tree.match(key, limit=7) as handle:
        assert (handle.num_tokens, handle.host.slots, handle.host.tail) == (4, (), (0, 3))


def test_pages_come_back_and_are_shared_at_once(cache: Cache) -> None:
    key = cache.store(list(range(10)))
    cache.tree.evict(3)
    cache.step()
    handle = cache.tree.match(key)
    own = cache.pool.allocate(3)
    assert cache.tree.restore(key, handle, own) == 10
    assert cache.reach(key) == (8, 10)
    with cache.tree.match(key) as other:
        assert other.pages == tuple(own[:2]) and other.host.end == 10
    handle.release()
    assert cache.step() == [(False, ((own[0], 0), (own[1], 1), (own[2], 2)))]
    assert cache.tree.num_host_pages == 1, "the tail was copied into the caller's own page, and stays for others"
    cache.tree.insert(key, own)
    assert cache.reach(key) == (10, 10) and cache.tree.num_host_pages == 0
    check_balance(cache.pool, own)


def test_a_part_may_be_brought_back(cache: Cache) -> None:
    key = cache.store(list(range(12)))
    cache.tree.evict(3)
    with cache.tree.match(key) as handle:
        own = cache.pool.allocate(2)
        assert cache.tree.restore(key, handle, own) == 8
    assert cache.reach(key) == (8, 12)
    cache.pool.release(own)
    assert [to_host for to_host, _ in cache.step()] == [True, False]


def test_what_was_computed_again_takes_the_place_of_slots(cache: Cache) -> None:
    key = cache.store(list(range(10)))
    cache.tree.evict(3)
    cache.step()
    longer = cache.store([*range(10), 50, 51, 52, 53])
    assert cache.reach(longer) == (14, 14)
    assert (cache.tree.num_host_pages, cache.host.pool.num_free, len(cache.tree.dump()["nodes"])) == (0, 8, 1)
    assert cache.reach(key) == (10, 10)


def test_a_branch_may_leave_what_is_in_host_memory(cache: Cache) -> None:
    first = cache.store(list(range(10)))
    cache.tree.evict(3)
    second = cache.store([0, 1, 2, 3, 4, 5, 90, 91, 92])
    assert cache.reach(second) == (9, 9) and cache.reach(first) == (6, 10)
    with cache.tree.match(first) as handle:
        assert handle.tail is not None and handle.tail[1] == 2, "the branch's page holds two tokens of it as well"
        assert len(handle.host.slots) == 1 and handle.host.tail is not None
    cache.step()


def test_a_page_within_which_paths_part_is_known_while_either_is(cache: Cache) -> None:
    first = cache.store([0, 1, 2, 3, 4, 5, 6, 7])
    second = cache.store([0, 1, 2, 3, 4, 5, 90, 91])
    cache.tree.evict(1)
    assert (cache.reach(first), cache.reach(second)) == ((6, 8), (8, 8))
    cache.tree.evict(1)
    assert (cache.reach(first), cache.reach(second)) == ((4, 8), (4, 8))
    cache.check()
    assert cache.reach(PrefixKey("", [0, 1, 2, 3, 4, 5])) == (4, 6)


def test_a_full_host_lets_go_of_what_was_used_least(cache: Cache) -> None:
    keys = [cache.store([start, *range(15)]) for start in (100, 200, 300)]
    cache.tree.evict(8)
    cache.step()
    assert [cache.reach(key) for key in keys] == [(0, 16), (0, 16), (16, 16)]
    cache.tree.evict(3)
    assert [cache.reach(key) for key in keys] == [(0, 4), (0, 16), (4, 16)]
    cache.tree.evict(1)
    assert [cache.reach(key) for key in keys] == [(0, 0), (0, 16), (0, 16)]


def test_what_matters_more_is_not_driven_out_of_host_memory(cache: Cache) -> None:
    important = cache.store([100, *range(31)], priority=2)
    cache.tree.evict(8)
    cache.step()
    cache.tree.evict(1)
    other = cache.store([200, *range(15)])
    assert cache.tree.evict(4) == 4
    assert (cache.reach(important), cache.reach(other)) == ((0, 32), (0, 0))
    cache.check()


def test_the_last_use_is_not_kept_in_host_memory(cache: Cache) -> None:
    key = cache.store(list(range(8)))
    cache.tree.last_use(key)
    cache.tree.evict(2)
    assert cache.reach(key) == (0, 0) and cache.step() == []


def test_more_than_host_memory_holds_keeps_the_start(cache: Cache) -> None:
    key = cache.store(list(range(48)))
    assert cache.tree.evict(12) == 12
    assert cache.reach(key) == (0, 32)
    cache.check()


def test_slots_of_copies_under_way_are_not_used_again() -> None:
    cache = Cache(slots=2)
    first = cache.store([100, *range(7)])
    second = cache.store([200, *range(7)])
    cache.tree.evict(2)
    assert cache.tree.evict(2) == 2
    assert (cache.reach(first), cache.reach(second)) == ((0, 8), (0, 0))
    swaps = cache.tree.take_swaps()
    third = cache.store([300, *range(7)])
    cache.tree.evict(2)
    assert cache.reach(third) == (0, 0), "taken, but not settled"
    cache.tree.settle(swaps)
    fourth = cache.store([400, *range(7)])
    cache.tree.evict(2)
    assert (cache.reach(first), cache.reach(fourth)) == ((0, 0), (0, 8))


def test_a_handle_keeps_its_slots_when_the_tree_lets_go_of_them() -> None:
    cache = Cache(slots=2)
    first = cache.store([100, *range(7)])
    cache.tree.evict(2)
    cache.step()
    handle = cache.tree.match(first)
    cache.tree.flush()
    check_balance(cache.host.pool, handle.host.held)
    own = cache.pool.allocate(2)
    assert cache.tree.restore(first, handle, own) == 8
    handle.release()
    cache.pool.release(own)
    assert cache.step() == [(False, ((own[0], 0), (own[1], 1)))]
    assert cache.reach(first) == (8, 8)


def test_copies_keep_their_order_and_directions_apart(cache: Cache) -> None:
    first = cache.store(list(range(8)))
    cache.tree.evict(2)
    handle = cache.tree.match(first)
    own = cache.pool.allocate(2)
    cache.tree.restore(first, handle, own)
    handle.release()
    cache.pool.release(own)
    cache.tree.evict(2)
    steps = cache.step()
    assert [to_host for to_host, _ in steps] == [True, False, True]
    assert [sorted(page for page, _ in pairs) for _, pairs in steps] == [[0, 1]] * 3
    assert {slot for _, slot in steps[0][1]}.isdisjoint(slot for _, slot in steps[2][1])


def test_a_page_filled_twice_is_filled_in_two_copies(cache: Cache) -> None:
    key = cache.store([0, 1, 2, 3, 4, 5])
    cache.tree.evict(2)
    cache.step()
    for _ in range(2):  # the first caller is aborted before the step
        with cache.tree.match(key) as handle:
            own = cache.pool.allocate(len(handle.host.held))
            assert cache.tree.restore(key, handle, own) == 6
        cache.pool.release(own)
    assert cache.step() == [(False, ((0, 0), (1, 1))), (False, ((1, 1),))]


def test_copies_that_were_never_made_make_the_tree_forget(cache: Cache) -> None:
    key = cache.store(list(range(8)))
    other = cache.store([9] * 8)
    cache.tree.settle(cache.tree.take_swaps(), made=False)
    assert cache.reach(key) == (8, 8), "nothing was to be copied"
    cache.tree.evict(2)
    cache.tree.settle(cache.tree.take_swaps(), made=False)
    assert (cache.reach(key), cache.reach(other), cache.pool.num_free, cache.host.pool.num_free) == ((0, 0), (0, 0), 32, 8)
    cache.check()


def test_the_dump_tells_tiers(cache: Cache) -> None:
    cache.store(list(range(12)))
    cache.store([7] * 4)
    cache.tree.evict(2)
    cache.store([8] * 4)
    dumped = cache.tree.dump()
    assert (dumped["num_pages"], dumped["num_host_pages"], dumped["num_host_slots"]) == (3, 2, 8)
    assert {node["tier"]: len(node["slots"]) for node in dumped["nodes"]} == {"both": 2, "device": 0}
    assert "pages 0 · host 0 1 ·" in cache.tree.render() and "2 of 8 host slots" in cache.tree.render()
    cache.tree.evict(1)
    assert [node["tier"] for node in cache.tree.dump()["nodes"]].count("host") == 1


def test_copying_pays_when_it_takes_less_time() -> None:
    cost = CopyCost(fixed=1e-3, page=1e-4, token=1e-5)
    assert cost.is_worth(100, 1600) and not cost.is_worth(5, 80) and not cost.is_worth(0, 0)
