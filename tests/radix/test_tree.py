"""The rules of the radix tree, one by one."""

import json
from collections.abc import Callable

import pytest

from branchpoint.radix import BlockPool, PrefixKey, RadixTree, check_balance

SIZE = 4


class Ticks:
    """A clock that tests wind by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(64, SIZE)


@pytest.fixture
def tree(pool: BlockPool) -> RadixTree:
    return RadixTree(pool, clock=Ticks())


Store = Callable[..., list[int]]


@pytest.fixture
def store(pool: BlockPool, tree: RadixTree) -> Store:
    """Computes a prompt from nothing, caches it and leaves: the tree alone holds what it kept. Returns the pages written."""

    def run(tokens: list[int], namespace: str = "", priority: int = 0) -> list[int]:
        pages = pool.allocate(-(-len(tokens) // SIZE))
        tree.insert(PrefixKey(namespace, tokens), pages, priority=priority)
        pool.release(pages)
        tree.check()
        check_balance(pool, [])
        return pages

    return run


def test_an_empty_tree_matches_nothing(tree: RadixTree) -> None:
    with tree.match(PrefixKey("", [1, 2, 3])) as handle:
        assert (handle.pages, handle.tail, handle.num_tokens) == ((), None, 0)
    assert tree.insert(PrefixKey("", []), []) == 0
    assert tree.evict(3) == tree.flush() == 0


def test_match_is_exact_to_the_token(tree: RadixTree, store: Store) -> None:
    pages = store(list(range(10)))
    for length in range(11):
        with tree.match(PrefixKey("", [*range(length), 99])) as handle:
            assert handle.num_tokens == length
            assert handle.pages == tuple(pages[: length // SIZE])
            assert handle.tail == ((pages[length // SIZE], length % SIZE) if length % SIZE else None)


@pytest.mark.parametrize("size", range(1, 129))
def test_every_page_size_is_exact(size: int) -> None:
    pool = BlockPool(600, size)
    tree = RadixTree(pool)
    tokens = [n % 7 for n in range(259)]
    pages = pool.allocate(-(-259 // size))
    tree.insert(PrefixKey("", tokens), pages)
    for length in (1, size - 1, size, size + 1, 257, 258, 259):
        with tree.match(PrefixKey("", [*tokens[:length], -1])) as handle:
            assert handle.num_tokens == length
            assert len(handle.pages) == length // size


def test_the_limit_bounds_the_match(tree: RadixTree, store: Store) -> None:
    pages = store(list(range(8)))
    with tree.match(PrefixKey("", list(range(8))), limit=7) as handle:
        assert (handle.num_tokens, handle.tail) == (7, (pages[1], 3))
    assert [tree.peek(PrefixKey("", list(range(8))), limit=limit) for limit in (0, 3, 8, 100)] == [0, 3, 8, 8]


def test_a_handle_holds_pages_and_tail_until_released(pool: BlockPool, tree: RadixTree, store: Store) -> None:
    pages = store(list(range(8)))
    handle = tree.match(PrefixKey("", [0, 1, 2, 3, 4]))
    assert [pool.references(page) for page in pages] == [2, 2]
    assert tree.num_evictable == 0 and tree.evict(2) == 0
    handle.release()
    handle.release()
    assert handle.released and [pool.references(page) for page in pages] == [1, 1]
    assert tree.evict(2) == 2


def test_namespaces_share_nothing(tree: RadixTree, store: Store) -> None:
    store([1, 2, 3, 4, 5], namespace="a")
    assert tree.peek(PrefixKey("b", [1, 2, 3, 4, 5])) == tree.peek(PrefixKey("", [1, 2, 3, 4, 5])) == 0
    store([1, 2, 3, 4, 5], namespace="b")
    assert (tree.num_pages, tree.num_tokens) == (4, 10)


def test_what_is_cached_already_is_ignored(pool: BlockPool, tree: RadixTree, store: Store) -> None:
    first = store([1, 2, 3, 4, 5, 6])
    store([1, 2, 3, 4, 5, 6])
    store([1, 2, 3])
    with tree.match(PrefixKey("", [1, 2, 3, 4, 5, 6])) as handle:
        assert handle.pages == (first[0],) and handle.tail == (first[1], 2)
    assert (tree.num_pages, tree.num_tokens, pool.num_free) == (2, 6, 62)


def test_a_partial_page_grows_in_place(pool: BlockPool, tree: RadixTree) -> None:
    pages = pool.allocate(2)
    assert tree.insert(PrefixKey("", [1, 2]), pages[:1]) == 2
    assert tree.insert(PrefixKey("", [1, 2, 3]), pages[:1]) == 1
    assert tree.insert(PrefixKey("", [1, 2, 3, 4, 5]), pages) == 2
    assert (tree.num_pages, tree.num_tokens, len(tree.dump()["nodes"])) == (2, 5, 1)
    check_balance(pool, pages)


def test_a_copy_that_was_written_on_takes_the_place_of_the_partial_page(pool: BlockPool, tree: RadixTree) -> None:
    first, copy = pool.allocate(2)
    tree.insert(PrefixKey("", [1, 2]), [first])
    tree.insert(PrefixKey("", [1, 2, 3]), [copy])
    assert (tree.num_pages, pool.references(first), pool.references(copy)) == (1, 1, 2)
    assert tree.insert(PrefixKey("", [1, 2, 9]), [first]) == 1  # the first writer went another way meanwhile
    with tree.match(PrefixKey("", [1, 2, 9])) as handle:
        assert handle.tail == (first, 3)
    tree.check()


def test_a_page_under_other_tokens_is_refused(pool: BlockPool, tree: RadixTree) -> None:
    pages = pool.allocate(1)
    tree.insert(PrefixKey("", [1, 2, 3]), pages)
    with pytest.raises(AssertionError, match="other tokens"):
        tree.insert(PrefixKey("", [7, 8, 9]), pages)


def test_insert_wants_as_many_pages_as_the_tokens_fill(pool: BlockPool, tree: RadixTree) -> None:
    with pytest.raises(AssertionError, match="5 tokens fill 2 pages of 4, got 1"):
        tree.insert(PrefixKey("", [1, 2, 3, 4, 5]), pool.allocate(1))


def test_a_thousand_siblings_within_one_page() -> None:
    pool = BlockPool(1002, 128)
    tree = RadixTree(pool, clock=Ticks())
    for sibling in range(1000):
        pages = pool.allocate(1)
        tree.insert(PrefixKey("", [5, 6, 7, 1000 + sibling]), pages)
        pool.release(pages)
    assert (tree.num_pages, tree.num_tokens) == (1000, 1003)
    assert tree.evict(999) == 999
    with tree.match(PrefixKey("", [5, 6, 7, 1999])) as handle:
        assert handle.num_tokens == 4
    assert tree.evict(1) == 1 and pool.num_free == 1002
    tree.check()


def test_the_shared_start_of_a_page_outlives_its_writer(tree: RadixTree, store: Store) -> None:
    store([1, 2, 3, 4, 5, 6, 7])
    second = store([1, 2, 3, 4, 5, 6, 8])
    assert tree.evict(1) == 1  # the first writer's page of 5, 6, 7
    with tree.match(PrefixKey("", [1, 2, 3, 4, 5, 6, 7])) as handle:
        assert handle.num_tokens == 6 and handle.tail == (second[1], 2)


def test_a_match_may_end_at_an_inner_node_within_a_page(tree: RadixTree, store: Store) -> None:
    store([1, 2, 3, 4, 5, 6, 7])
    latest = store([1, 2, 3, 4, 5, 8, 9])
    with tree.match(PrefixKey("", [1, 2, 3, 4, 5])) as handle:
        assert handle.num_tokens == 5 and handle.tail == (latest[1], 1)


def test_eviction_takes_the_least_recently_used_first(tree: RadixTree, store: Store) -> None:
    for start in (10, 20, 30):
        store([start, 1, 2, 3])
    tree.match(PrefixKey("", [10, 1])).release()
    assert tree.peek(PrefixKey("", [20, 1])) == 2  # counts as no use
    tree.evict(1)
    assert [tree.peek(PrefixKey("", [start, 1, 2, 3])) for start in (10, 20, 30)] == [4, 0, 4]
    tree.evict(1)
    assert [tree.peek(PrefixKey("", [start, 1, 2, 3])) for start in (10, 20, 30)] == [4, 0, 0]


def test_eviction_takes_the_lowest_priority_first(tree: RadixTree, store: Store) -> None:
    store([1, 1, 1, 1], priority=1)
    store([2, 2, 2, 2], priority=0)
    store([3, 3, 3, 3], priority=-1)
    for left in ([4, 4, 0], [4, 0, 0], [0, 0, 0]):
        assert tree.evict(1) == 1
        assert [tree.peek(PrefixKey("", [start] * 4)) for start in (1, 2, 3)] == left


def test_priority_reaches_the_prefix_that_asks_for_it_and_no_further(tree: RadixTree, store: Store) -> None:
    store(list(range(12)))
    store([0, 1, 2, 3], priority=5)
    store([0, 1, 2, 3, 77, 77, 77, 77])
    assert [(node["start"], node["priority"]) for node in tree.dump()["nodes"]] == [(0, 5), (4, 0), (4, 0)]


def test_what_is_longer_but_matters_less_is_kept_apart(tree: RadixTree, store: Store) -> None:
    store([1, 2], priority=3)
    store([1, 2, 3, 4, 5])
    assert [(node["start"], node["priority"], len(node["pages"])) for node in tree.dump()["nodes"]] == [(0, 3, 0), (2, 0, 2)]
    store([9, 9, 9, 9], priority=1)
    assert tree.evict(1) == 1 and tree.peek(PrefixKey("", [1, 2, 3, 4, 5])) == 4
    assert tree.evict(1) == 1 and tree.peek(PrefixKey("", [1, 2, 3, 4, 5])) == 2


def test_a_leaf_is_cut_from_its_end(tree: RadixTree, store: Store) -> None:
    store(list(range(15)))
    assert tree.evict(1) == 1
    assert tree.num_tokens == tree.peek(PrefixKey("", list(range(15)))) == 12
    with tree.match(PrefixKey("", [0, 1, 2, 3, 4])):
        assert tree.num_evictable == 1 and tree.evict(3) == 1
        assert tree.num_tokens == 8


def test_a_leaf_in_use_makes_way_where_pages_above_it_are_idle(pool: BlockPool, tree: RadixTree, store: Store) -> None:
    store([1, 2, 3, 4])
    own = pool.allocate(2)  # computed the same first page at the same time, and goes on
    tree.insert(PrefixKey("", [1, 2, 3, 4, 5]), own)
    assert tree.num_evictable == 1
    assert tree.evict(1) == 1
    assert (tree.num_pages, tree.num_tokens) == (0, 0)
    assert tree.insert(PrefixKey("", [1, 2, 3, 4, 5]), own) == 5
    check_balance(pool, own)


def test_a_leaf_in_use_keeps_what_lies_before_the_idle_page(pool: BlockPool, tree: RadixTree, store: Store) -> None:
    written = store(list(range(12)))
    pool.retain(written[2:])
    assert tree.evict(1) == 1
    tree.check()
    assert tree.num_tokens == tree.peek(PrefixKey("", list(range(12)))) == 4


def test_leaves_in_use_stay_when_others_can_go(pool: BlockPool, tree: RadixTree, store: Store) -> None:
    store([1, 1, 1, 1])
    store([2, 2, 2, 2])
    with tree.match(PrefixKey("", [1, 1, 1, 1])):
        tree.match(PrefixKey("", [2, 2, 2, 2])).release()
        assert tree.evict(5) == 1
        assert tree.num_tokens == 4
    assert tree.evict(1) == 1


def test_flush_forgets_all_and_leaves_held_pages_to_their_holders(pool: BlockPool, tree: RadixTree, store: Store) -> None:
    store([1, 2, 3, 4, 5])
    handle = tree.match(PrefixKey("", [1, 2, 3, 4]))
    assert tree.flush() == 1
    assert (tree.num_pages, tree.num_tokens, tree.peek(PrefixKey("", [1]))) == (0, 0, 0)
    check_balance(pool, handle.pages)
    assert tree.insert(PrefixKey("", [1, 2, 3, 4]), handle.pages) == 4
    handle.release()
    assert tree.evict(9) == 1 and pool.num_free == 64


def test_a_very_deep_tree_needs_no_recursion() -> None:
    pool = BlockPool(9000, 1)
    tree = RadixTree(pool, clock=Ticks())
    pages = pool.allocate(3000)
    for end in range(3000, 0, -1):
        tree.insert(PrefixKey("", [1] * end), pages[:end], priority=3000 - end)  # every priority a node of its own
    assert len(tree.dump()["nodes"]) == 3000
    json.dumps(tree.dump())
    tree.check()
    with tree.match(PrefixKey("", [1] * 3000)) as handle:
        assert list(handle.pages) == pages
    pool.release(pages)
    assert len(tree.render().splitlines()) == 3002
    assert tree.evict(3000) == 3000


def test_a_path_that_was_split_is_joined_again_when_nothing_needs_the_split(tree: RadixTree, store: Store) -> None:
    long = list(range(18))
    store(long)
    for cut in (3, 6, 7, 12):
        store([*long[:cut], 99])
    assert len(tree.dump()["nodes"]) == 9
    with tree.match(PrefixKey("", long)) as handle:
        tree.evict(4)
        assert handle.tail is not None
        assert tree.insert(PrefixKey("", long), [*handle.pages, handle.tail[0]]) == 0
    tree.check()
    assert [(node["tokens"], len(node["pages"]), node["hits"]) for node in tree.dump()["nodes"]] == [(long, 5, 1)]


def test_a_path_is_joined_as_far_as_the_next_branch(tree: RadixTree, store: Store) -> None:
    long = list(range(18))
    store(long)
    for cut in (3, 6, 12):
        store([*long[:cut], 99])
    tree.match(PrefixKey("", long)).release()
    assert tree.evict(2) == 2
    store(long)
    assert [(node["parent"], node["tokens"]) for node in tree.dump()["nodes"]] == [
        (None, long[:12]),
        (0, long[12:]),
        (0, [99]),
    ]
    assert tree.peek(PrefixKey("", long)) == 18


def test_the_dump_counts_hits_and_names_parents(tree: RadixTree, store: Store) -> None:
    store([1, 2, 3, 4, 5, 6])
    store([1, 2, 3, 9, 9])
    for _ in range(3):
        tree.match(PrefixKey("", [1, 2, 3, 9])).release()
    dumped = json.loads(json.dumps(tree.dump()))
    assert (dumped["num_tokens"], dumped["num_pages"], dumped["page_size"], dumped["num_evictable"]) == (8, 4, 4, 4)
    assert [(node["parent"], node["tokens"], node["hits"]) for node in dumped["nodes"]] == [
        (None, [1, 2, 3], 3),
        (0, [4, 5, 6], 0),
        (0, [9, 9], 3),
    ]
    assert "  [0, 3) 1 2 3 · pages - · 3 hits · 2 s idle" in tree.render().splitlines()
