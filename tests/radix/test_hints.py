"""What callers say about the next use changes the order of eviction, and nothing else."""

import json

import pytest

from branchpoint.radix import BlockPool, DumpOptions, HostTier, PrefixKey, RadixTree
from branchpoint.radix.eviction import BUSY_SECONDS
from branchpoint.radix.hints import GRACE_SECONDS

SIZE = 4


class Cache:
    """A tree of conversations that share nothing, each named by its first token, and a clock that stands still."""

    def __init__(self, num_pages: int = 64) -> None:
        self.now = 0.0
        self.pool = BlockPool(num_pages, SIZE)
        self.tree = RadixTree(self.pool, clock=lambda: self.now)

    def key(self, name: int, pages: int = 2) -> PrefixKey:
        return PrefixKey("", [name, *range(100, 100 + pages * SIZE - 1)])

    def store(self, name: int, pages: int = 2, *, priority: int = 0, base: PrefixKey | None = None) -> PrefixKey:
        self.now += 1
        key = self.key(name, pages) if base is None else PrefixKey("", [*base.tokens, name, *range(200, 200 + pages * SIZE - 1)])
        own = self.pool.allocate(len(key) // SIZE)
        self.tree.insert(key, own, priority=priority)
        self.pool.release(own)
        return key

    def left(self, *keys: PrefixKey) -> list[int]:
        """How many pages of each are cached."""
        return [self.tree.peek(key) // SIZE for key in keys]


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_a_pin_outlives_what_was_used_later_and_falls_again(cache: Cache) -> None:
    first, second, third = (cache.store(name) for name in (1, 2, 3))
    assert cache.tree.pin(first, 10) == len(first)
    cache.tree.evict(2)
    assert cache.left(first, second, third) == [2, 0, 2]
    cache.now += 10
    cache.tree.evict(2)
    assert cache.left(first, second, third) == [0, 0, 2]


def test_a_pin_ends_before_what_lies_behind_it(cache: Cache) -> None:
    prefix = cache.key(1)
    longer = cache.store(1, pages=4)
    other = cache.store(2)
    assert cache.tree.pin(prefix, 10) == len(prefix)
    cache.tree.evict(4)
    assert cache.left(longer, other) == [2, 0]


def test_a_pin_covers_what_is_cached_of_its_key(cache: Cache) -> None:
    short = cache.store(1)
    assert cache.tree.pin(PrefixKey("", [*short.tokens, 7, 8, 9]), 10) == len(short)
    assert cache.tree.pin(cache.key(2), 10) == 0
    assert cache.tree.pin(PrefixKey("other", short.tokens), 10) == 0


def test_a_pin_can_be_taken_back(cache: Cache) -> None:
    first, second = cache.store(1), cache.store(2)
    cache.tree.pin(first, 100)
    assert cache.tree.pin(first, 0) == 0
    cache.tree.evict(2)
    assert cache.left(first, second) == [0, 2]


def test_pins_together_cover_half_the_pool_at_most() -> None:
    cache = Cache(num_pages=12)
    first, second, third = (cache.store(name) for name in (1, 2, 3))
    fourth = cache.store(4)
    assert [cache.tree.pin(key, 10) for key in (first, second, third, fourth)] == [8, 8, 8, 0]
    assert cache.tree.pin(first, 20) == 8, "the same pin again costs nothing"
    cache.now += 11
    assert cache.tree.pin(fourth, 10) == 8
    assert cache.tree.flush() == 8
    assert [cache.tree.pin(cache.store(name), 10) for name in (1, 2, 3)] == [8, 8, 8]


def test_no_pin_keeps_an_allocation_from_its_pages(cache: Cache) -> None:
    keys = [cache.store(name) for name in (1, 2, 3)]
    for key in keys:
        cache.tree.pin(key, 1000, priority=9)
        cache.tree.expect(key, 1)
    assert cache.tree.evict(100) == 6
    assert cache.left(*keys) == [0, 0, 0]


def test_a_priority_given_with_the_tokens_falls_again(cache: Cache) -> None:
    first, second = cache.store(1, priority=3), cache.store(2)
    cache.now += 298
    cache.tree.evict(1)
    assert cache.left(first, second) == [2, 1]
    cache.now += 10
    cache.tree.evict(1)
    assert cache.left(first, second) == [2, 0]
    third = cache.store(3)
    cache.tree.evict(2)
    assert cache.left(first, third) == [0, 2]


def test_a_low_priority_does_not_rise_by_itself(cache: Cache) -> None:
    first, second = cache.store(1), cache.store(2, priority=-1)
    cache.now += 1000
    cache.tree.evict(2)
    assert cache.left(first, second) == [2, 0]


def test_the_longer_of_two_lifts_holds_when_the_higher_has_ended(cache: Cache) -> None:
    first = cache.store(1)
    cache.tree.pin(first, 50, priority=1)
    cache.tree.pin(first, 5, priority=4)
    second, third = cache.store(2), cache.store(3, priority=2)
    cache.now += 20
    cache.tree.evict(2)
    assert cache.left(first, second, third) == [2, 0, 2]
    cache.tree.evict(2)
    assert cache.left(first, third) == [0, 2]


def test_what_comes_back_last_goes_first_but_after_what_nobody_announced(cache: Cache) -> None:
    soon, late, unknown = (cache.store(name) for name in (1, 2, 3))
    cache.tree.expect(soon, 2)
    cache.tree.expect(late, 9)
    for expected in ([2, 2, 0], [2, 0, 0], [0, 0, 0]):
        cache.tree.evict(2)
        assert cache.left(soon, late, unknown) == expected


def test_of_what_is_awaited_that_of_lower_standing_goes_first(cache: Cache) -> None:
    older, younger, important = (cache.store(name) for name in (1, 2, 3))
    cache.tree.expect(older, 9, standing=(0, -1))
    cache.tree.expect(younger, 2, standing=(0, -2))
    cache.tree.expect(important, 9, standing=(1, -3))
    assert [cache.tree.num_awaited(standing) for standing in ((1, 0), (0, 0), (0, -1), (0, -2), (-1, 0))] == [0, 2, 2, 4, 6]
    cache.tree.evict(1)
    assert cache.tree.num_awaited((-1, 0)) == 5
    for expected in ([2, 0, 2], [0, 0, 2], [0, 0, 0]):
        cache.tree.evict(1 if expected == [2, 0, 2] else 2)
        assert cache.left(older, younger, important) == expected
    assert cache.tree.num_awaited((-1, 0)) == 0


def test_what_has_come_back_or_was_given_up_is_awaited_no_longer(cache: Cache) -> None:
    back, late, split = cache.store(1), cache.store(2), cache.store(3, pages=4)
    for key in (back, late, split):
        cache.tree.expect(key, 0, standing=(0, -1))
    assert cache.tree.num_awaited((0, -9)) == 8
    cache.tree.pin(cache.key(3), 1)  # cuts the stretch in two, of which the end is awaited
    assert cache.tree.num_awaited((0, -9)) == 6
    cache.tree.match(back).release()
    assert cache.tree.num_awaited((0, -9)) == 4
    cache.now += GRACE_SECONDS
    assert cache.tree.num_awaited((0, -9)) == 0
    cache.tree.check()


def test_a_leaf_found_in_use_is_left_in_peace_for_a_moment(cache: Cache) -> None:
    used, awaited = cache.store(1), cache.store(2)
    cache.tree.expect(awaited, 9)
    with cache.tree.match(used):
        cache.tree.evict(1)
    assert cache.left(used, awaited) == [2, 1]
    cache.now += BUSY_SECONDS
    cache.tree.evict(1)
    assert cache.left(used, awaited) == [1, 1]
    assert cache.tree.evict(9) == 2, "no leaf is left for good"


def test_what_host_memory_has_room_for_is_not_spared() -> None:
    cache = Cache()
    cache.tree = RadixTree(cache.pool, clock=lambda: cache.now, host=HostTier(3, SIZE))
    cache.tree.expect(cache.store(1), 0)
    assert cache.tree.num_awaited((-1, 0)) == 0
    cache.tree.expect(cache.store(2), 0)
    assert cache.tree.num_awaited((-1, 0)) == 1
    cache.tree.evict(2)
    assert cache.tree.num_awaited((-1, 0)) == 1, "two pages lie in host memory, two on the device, one slot is left"


def test_who_does_not_come_back_in_time_is_given_up(cache: Cache) -> None:
    awaited, other = cache.store(1), cache.store(2)
    cache.tree.expect(awaited, 2)
    cache.now += 3 * 2 + GRACE_SECONDS
    cache.tree.evict(2)
    assert cache.left(awaited, other) == [0, 2]


def test_a_return_is_counted_once_for_each_announced_use(cache: Cache) -> None:
    fork, other = cache.store(1), cache.store(2)
    cache.tree.expect(fork, 0, uses=2)
    for uses in (2, 1, 0):
        assert cache.tree.dump()["nodes"][0]["awaited_uses"] == uses
        cache.now += 0.1
        cache.tree.match(PrefixKey("", [*fork.tokens, 5]), limit=len(fork) - 1).release()
    cache.tree.match(other).release()
    cache.tree.evict(1)
    assert cache.left(fork, other) == [1, 2]


def test_a_match_of_a_part_is_not_the_announced_return(cache: Cache) -> None:
    fork = cache.store(1)
    cache.tree.expect(fork, 0)
    cache.tree.match(fork, limit=4).release()
    cache.tree.match(fork, use=False).release()
    assert cache.tree.dump()["nodes"][0]["awaited_uses"] == 1


def test_a_match_counts_when_it_is_used(cache: Cache) -> None:
    first, second = cache.store(1), cache.store(2)
    handle = cache.tree.match(first, use=False)
    assert cache.tree.dump()["nodes"][0]["hits"] == 0
    cache.now += 1
    cache.tree.use(handle)
    handle.release()
    assert cache.tree.dump()["nodes"][0]["hits"] == 1
    cache.tree.evict(2)
    assert cache.left(first, second) == [2, 0]


def test_the_last_use_goes_first_until_somebody_comes_after_all(cache: Cache) -> None:
    old, done, doubted = (cache.store(name) for name in (1, 2, 3))
    assert cache.tree.last_use(done) == cache.tree.last_use(doubted) == len(done)
    cache.tree.match(doubted).release()
    cache.tree.evict(2)
    assert cache.left(old, done, doubted) == [2, 0, 2]


def test_the_last_use_spares_what_others_share(cache: Cache) -> None:
    prefix = cache.store(1)
    branch, other = cache.store(7, base=prefix), cache.store(8, base=prefix)
    assert cache.tree.last_use(prefix) == 0
    assert cache.tree.last_use(other) == 8
    cache.tree.evict(3)
    assert cache.left(branch, other) == [3, 2]


def test_whole_conversations_go_rather_than_the_tail_of_each(cache: Cache) -> None:
    first, second = cache.store(1, pages=6), cache.store(2, pages=6)
    cache.tree.expect(first, 8)
    cache.tree.expect(second, 6)
    cache.tree.evict(1)
    assert cache.left(first, second) == [5, 6]
    third = cache.store(3, pages=6)
    cache.tree.expect(third, 9)  # comes back later, but the first is no longer whole
    cache.tree.evict(5)
    assert cache.left(first, second, third) == [0, 6, 6]
    cache.tree.evict(6)
    assert cache.left(second, third) == [6, 0]


def test_a_conversation_that_is_used_again_is_whole_again(cache: Cache) -> None:
    first, second = cache.store(1, pages=4), cache.store(2, pages=4)
    cache.tree.evict(1)
    cache.now += 1
    cache.tree.match(first).release()
    cache.tree.evict(4)
    assert cache.left(first, second) == [3, 0]


def test_the_only_conversation_can_go_after_it_was_cut_and_used(cache: Cache) -> None:
    first = cache.store(1, pages=4)
    for left in (3, 2, 1, 0):
        assert cache.tree.evict(1) == 1
        assert cache.left(first) == [left]
        cache.tree.match(first).release()


def test_hints_end_where_the_next_turn_goes_on(cache: Cache) -> None:
    first = cache.store(1)
    cache.tree.expect(first, 5)
    with cache.tree.match(first):
        second = cache.store(9, base=first)
    assert len(cache.tree.dump()["nodes"]) == 1, "the hint was used up, so that the leaf could grow"
    cache.tree.pin(second, 5)
    cache.store(10, base=second)
    assert [node["start"] for node in cache.tree.dump()["nodes"]] == [0, 16]
    cache.now += 6
    cache.store(10, base=second)
    assert [node["start"] for node in cache.tree.dump()["nodes"]] == [0]


def test_hints_again_and_again_leave_nothing_behind(cache: Cache) -> None:
    keys = [cache.store(name, pages=1) for name in range(20)]
    for _ in range(200):
        for key in keys:
            cache.now += 0.01
            cache.tree.expect(key, 5)
    queue = cache.tree._branches.queue
    assert len(queue) == 20 and len(queue._heap) + len(queue._timers) < 200
    assert cache.tree.evict(20) == 20


def test_the_picture_tells_hints_age_and_text(cache: Cache) -> None:
    pinned, awaited, done = (cache.store(name) for name in (1, 2, 3))
    cache.tree.pin(pinned, 60, priority=2)
    cache.tree.expect(awaited, 4, uses=3)
    cache.tree.last_use(done)
    cache.now += 6
    options = DumpOptions(max_tokens=3, decode=lambda tokens: " ".join(f"t{token}" for token in tokens))
    nodes = json.loads(json.dumps(cache.tree.dump(options)))["nodes"]
    assert [(node["tokens"], node["num_tokens"], node["text"]) for node in nodes[:1]] == [([1, 100, 101], 8, "t1 t100 t101")]
    assert [(node["priority"], node["lifted_seconds"], node["tier"]) for node in nodes] == [
        (2, 54, "device"),
        (0, None, "device"),
        (0, None, "device"),
    ]
    assert [(node["awaited_seconds"], node["awaited_uses"], node["last_use"]) for node in nodes] == [
        (None, 0, False),
        (-2, 3, False),
        (None, 0, True),
    ]
    lines = cache.tree.render(options).splitlines()
    assert "  [0, 8) 't1 t100 t101' · pages 0 1 · 0 hits · 8 s idle · priority 2 for 54 s" in lines
    assert "  [0, 8) 't2 t100 t101' · pages 2 3 · 0 hits · 7 s idle · 3 awaited in -2 s" in lines
    assert lines[-1].endswith("last use")


def test_a_dump_of_one_namespace_tells_nothing_of_others(cache: Cache) -> None:
    cache.store(1)
    own = cache.pool.allocate(1)
    cache.tree.insert(PrefixKey("a", [1, 2, 3]), own)
    dumped = cache.tree.dump(DumpOptions(namespace="a"))
    assert (dumped["num_tokens"], dumped["num_pages"], dumped["num_evictable"]) == (3, 1, 0)
    assert [node["namespace"] for node in dumped["nodes"]] == ["a"]
