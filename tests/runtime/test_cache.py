"""Pages of sequences: found in the tree, copied where they match in part, taken by need, given back."""

from branchpoint.runtime.cache import KVCache
from branchpoint.runtime.plan import PageCopy
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence


def make(tokens: list[int], *, max_output: int = 8, namespace: str = "", next_row: int | None = None) -> Sequence:
    return Sequence(
        "call",
        0,
        list(tokens),
        len(tokens),
        SamplingParams(),
        seed=0,
        namespace=namespace,
        max_output=max_output,
        next_row=len(tokens) - 1 if next_row is None else next_row,
    )


def computed(cache: KVCache, tokens: list[int], **options: object) -> Sequence:
    """A sequence that was admitted and has KV for all of `tokens`."""
    sequence = make(tokens, **options)  # type: ignore[arg-type]
    assert cache.admit(sequence, 0) and cache.grow(sequence, len(tokens))
    cache.take_copies()
    cache.settle(())
    sequence.num_computed = len(tokens)
    return sequence


def test_a_match_is_exact_to_the_token_and_its_last_page_is_copied() -> None:
    cache = KVCache(16, 4)
    first = computed(cache, list(range(10)))
    cache.publish(first)
    second = make([*range(7), 99, 98])
    assert cache.admit(second, 0)
    assert second.num_computed == 7
    assert second.pages[0] == first.pages[0] and second.pages[1] != first.pages[1]
    assert cache.take_copies() == (PageCopy(first.pages[1], second.pages[1], 3),)
    cache.settle(())
    cache.check([first, second])


def test_one_row_is_always_computed() -> None:
    cache = KVCache(16, 4)
    cache.release(computed(cache, list(range(8))), keep=True)
    second = make(list(range(8)))
    assert cache.cached_tokens(second) == 7
    assert cache.admit(second, 0) and second.num_computed == 7


def test_wanted_rows_limit_the_match() -> None:
    cache = KVCache(16, 4)
    cache.release(computed(cache, list(range(12))), keep=True)
    second = make(list(range(12)), next_row=5)
    assert cache.admit(second, 0) and second.num_computed == 5


def test_what_is_being_written_can_be_shared_and_written_on() -> None:
    cache = KVCache(16, 4)
    first = computed(cache, list(range(6)))
    cache.publish(first)
    first.tokens += [50, 51, 52]
    assert cache.grow(first, 9)
    first.num_computed = 9
    second = computed(cache, [*range(6), 60])
    cache.publish(second)
    cache.publish(first)
    cache.check([first, second])
    third = make([*range(6), 50, 51, 52, 53])
    assert cache.admit(third, 0) and third.num_computed == 9


def test_a_lone_sequence_gets_every_page_even_where_its_match_is_in_the_way() -> None:
    cache = KVCache(2, 4)
    cache.release(computed(cache, list(range(7)), max_output=1), keep=True)
    second = make([*range(6), 90, 91], max_output=0)
    assert cache.admit(second, 0)
    assert second.num_computed == 4 and cache.take_copies() == ()
    assert cache.grow(second, 8)
    cache.check([second])


def test_admission_leaves_what_others_need() -> None:
    cache = KVCache(8, 4)
    waiting = make(list(range(20)), max_output=1)
    assert not cache.admit(waiting, 3)
    cache.check([waiting])
    assert waiting.pages == [] and cache.pool.num_free == 8
    assert cache.admit(waiting, 2)


def test_growth_evicts_from_the_tree_and_takes_nothing_where_that_is_not_enough() -> None:
    cache = KVCache(6, 4)
    held = computed(cache, [1] * 8)
    cache.release(computed(cache, [2] * 8), keep=True)
    assert (cache.pool.num_free, cache.num_available) == (2, 4)
    assert not cache.grow(held, 28)
    assert cache.num_available == 4
    assert cache.grow(held, 24)
    cache.check([held])
    assert cache.num_available == 0


def test_what_is_released_without_keeping_is_free() -> None:
    cache = KVCache(8, 4)
    first = computed(cache, list(range(9)))
    cache.release(first, keep=False)
    assert (cache.pool.num_free, first.pages, first.num_computed) == (8, [], 0)


def test_a_copy_is_dropped_with_the_sequence_that_wanted_it() -> None:
    cache = KVCache(8, 4)
    cache.release(computed(cache, list(range(7))), keep=True)
    second = make([*range(6), 90])
    assert cache.admit(second, 0)
    cache.release(second, keep=False)
    assert cache.take_copies() == ()
    cache.settle(())
    cache.check([])


def test_shared_prefixes_stay_within_a_namespace() -> None:
    cache = KVCache(16, 4)
    one, other, stranger = make([1, 2, 3, 4, 5]), make([1, 2, 3, 9]), make([1, 2, 3, 4], namespace="x")
    assert cache.shared_prefix(one, other) == 3
    assert cache.shared_prefix(one, stranger) == 0
    assert cache.shared_prefix(other, make([1, 2, 3, 9, 9])) == 3  # its last row has to be computed
    assert KVCache(16, 4, enabled=False).shared_prefix(one, other) == 0
