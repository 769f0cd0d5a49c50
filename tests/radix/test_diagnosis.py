"""Prompts that differ early and agree behind are found, with the tokens that make the difference."""

import random

from branchpoint.radix import BlockPool, PrefixKey, RadixTree, find_lost_reuse

rng = random.Random(0)
HEAD = [rng.randrange(1000, 9000) for _ in range(12)]
BODY = [rng.randrange(1000, 9000) for _ in range(900)]
DATE = [50, 51, 52]


def prompt(date: list[int], question: int, namespace: str = "") -> PrefixKey:
    """A system prompt that names the date early, then instructions, then a question."""
    asked = random.Random(question)
    return PrefixKey(namespace, [*HEAD, *date, *BODY, *(asked.randrange(1000, 9000) for _ in range(40))])


def test_the_date_in_the_system_prompt_is_found() -> None:
    (loss,) = find_lost_reuse([prompt([50, 51, day], day) for day in range(60, 70)])
    assert (loss.at, loss.num_prompts, loss.lost_tokens) == (len(HEAD) + 2, 9, 9 * len(BODY))
    assert (loss.before, loss.here, loss.there) == ((*HEAD[-6:], 50, 51), (61,), (60,))


def test_the_finding_reads_as_a_sentence() -> None:
    (loss,) = find_lost_reuse([prompt([50, 51, day], day) for day in (60, 61)])
    said = loss.describe(lambda tokens: " ".join(map(str, tokens)))
    assert "1 prompts agree with earlier ones on 14 tokens" in said
    assert "then comes '61', where an earlier one has '60'. 900 tokens behind that are the same" in said


def test_what_an_earlier_prompt_shares_from_the_start_is_not_lost() -> None:
    prompts = [prompt([50, 51, day], 10 * day + turn) for day in (60, 61) for turn in range(8)]
    (loss,) = find_lost_reuse(prompts)
    assert (loss.num_prompts, loss.lost_tokens) == (1, len(BODY)), "only the first of the second day lost anything"


def test_an_insertion_of_any_length_is_quoted() -> None:
    (loss,) = find_lost_reuse([prompt([], 1), prompt(DATE, 2)])
    assert loss.here == tuple(DATE) and loss.there == tuple(BODY[:1])
    (loss,) = find_lost_reuse([prompt(DATE, 1), prompt(list(range(100, 140)), 2)])
    assert loss.here == tuple(range(100, 116)) and loss.there == tuple(DATE)


def test_several_differences_add_up() -> None:
    first = [*HEAD, 1, *BODY[:400], 2, *BODY[400:]]
    second = [*HEAD, 3, *BODY[:400], 4, *BODY[400:]]
    (loss,) = find_lost_reuse([PrefixKey("", first), PrefixKey("", second)])
    assert loss.lost_tokens == len(BODY) and (loss.here, loss.there) == ((3,), (1,))


def test_the_costliest_places_come_first() -> None:
    other = [7, 8, 9]
    short = [PrefixKey("", [*other, day, *range(200)]) for day in (501, 502)]
    losses = find_lost_reuse([*short, *(prompt([day], day) for day in (60, 61))])
    assert [(loss.at, loss.lost_tokens) for loss in losses] == [(len(HEAD), len(BODY)), (3, 200)]
    assert [loss.at for loss in find_lost_reuse([*short, *(prompt([day], day) for day in (60, 61))], most=1)] == [len(HEAD)]


def test_nothing_is_found_where_nothing_is_lost() -> None:
    assert find_lost_reuse([]) == []
    assert find_lost_reuse([prompt(DATE, question) for question in range(5)]) == []
    assert find_lost_reuse([PrefixKey("", random.Random(seed).sample(range(9000), 500)) for seed in range(5)]) == []
    assert find_lost_reuse([PrefixKey("", [day, *BODY[:30]]) for day in range(5)]) == []


def test_namespaces_are_not_compared() -> None:
    assert find_lost_reuse([prompt([60], 1, "a"), prompt([61], 2, "b")]) == []


def test_tokens_that_repeat_do_no_harm() -> None:
    """Whether a run of one token is sampled is up to that token; where it is, nothing is counted twice."""
    found = [find_lost_reuse([PrefixKey("", [first, *[token] * 3000]) for first in (-1, -2)]) for token in range(50)]
    assert {len(losses) for losses in found} == {0, 1}
    assert all(loss.at == 0 and loss.here == (-2,) and loss.lost_tokens == 3000 for losses in found for loss in losses)


def test_the_tree_gives_its_prompts_by_itself() -> None:
    pool = BlockPool(1000, 16)
    tree = RadixTree(pool)
    for day in (60, 61, 62):
        key = prompt([50, 51, day], day)
        pages = pool.allocate(-(-len(key) // 16))
        tree.insert(key, pages)
        pool.release(pages)
    assert tree.recent(10) == [prompt([50, 51, day], day) for day in (60, 61, 62)]
    assert tree.recent(1) == [prompt([50, 51, 62], 62)]
    assert tree.recent(3, "other") == []
    (loss,) = find_lost_reuse(tree.recent(10))
    assert (loss.at, loss.num_prompts, loss.lost_tokens) == (len(HEAD) + 2, 2, 2 * len(BODY))
