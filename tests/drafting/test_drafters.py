"""Each drafter by itself: what it finds, what it leaves alone, what it forgets."""

import random

import pytest

from branchpoint.radix import BlockPool, PrefixKey, RadixTree
from branchpoint.runtime.drafting.grammar import FORKED, ONLY, GrammarDrafter
from branchpoint.runtime.drafting.ngram import NgramDrafter
from branchpoint.runtime.drafting.radix import PATIENCE, RadixDrafter
from branchpoint.runtime.drafting.suffix import MAX_NAMESPACES, SuffixDrafter
from branchpoint.runtime.drafting.suffix_automaton import Cursor, SuffixAutomaton
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from tests.runtime.scripted import TABLE, VOCABULARY, ListGrammar


def sequence(prompt: list[int], output: list[int] | None = None, namespace: str = "") -> Sequence:
    tokens = [*prompt, *(output or [])]
    return Sequence("call", 0, tokens, len(prompt), SamplingParams(), seed=0, namespace=namespace)


def guesses(drafter: object, one: Sequence, count: int = 8) -> tuple[int, ...]:
    found = drafter.propose({one: count})  # type: ignore[attr-defined]
    return found[one].tokens if one in found else ()


def tree(drafter: object, one: Sequence, count: int = 8) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = drafter.propose({one: count})[one]  # type: ignore[attr-defined]
    return found.tokens, found.depths


class TestNgram:
    def test_the_longest_tail_and_its_latest_occurrence_count(self) -> None:
        drafter = NgramDrafter(1, 3)
        assert guesses(drafter, sequence([5, 1, 2, 3, 10, 11, 1, 2, 3, 20, 9, 2, 3, 30, 1, 2, 3]), 2) == (20, 9)
        assert guesses(drafter, sequence([7, 8, 7])) == (8, 7)
        assert guesses(drafter, sequence([1, 2, 3])) == ()

    def test_other_tokens_that_followed_are_guessed_beside_the_latest(self) -> None:
        text = [1, 2, 10, 11, 1, 2, 20, 21, 1, 2, 30, 31, 1, 2]
        assert tree(NgramDrafter(2, 2, 2), sequence(text), 2) == ((30, 31, 20, 21), (0, 1, 0, 1))
        assert tree(NgramDrafter(2, 2, 9), sequence([*text[:4], *text]), 1) == ((30, 20, 10), (0, 0, 0))

    def test_it_follows_a_growing_text(self) -> None:
        drafter, one = NgramDrafter(2, 3), sequence([1, 2, 3, 4])
        assert guesses(drafter, one) == ()
        one.tokens += [1, 2]
        assert guesses(drafter, one, 2) == (3, 4)
        drafter.finish(one, kept=True)
        assert not drafter._indices


class TestAutomaton:
    @pytest.mark.parametrize("letters", [2, 3, 10])
    def test_repeats_and_cursors_are_those_of_a_search(self, letters: int) -> None:
        rng = random.Random(letters)
        for _ in range(60):
            automaton, cursor = SuffixAutomaton(), Cursor()
            other: list[int] = []
            for _ in range(rng.randrange(1, 40)):
                token = rng.randrange(letters)
                automaton.extend(token)
                text = automaton.tokens
                length, end = automaton.repeat
                assert length == max(
                    size
                    for size in range(len(text))
                    if any(text[at : at + size] == text[len(text) - size :] for at in range(len(text) - size))
                )
                assert end < len(text) or not length
                assert text[end - length : end] == text[len(text) - length :]
                other.append(rng.randrange(letters))
                automaton.step(cursor, other[-1])
                assert other[len(other) - cursor.length :] == text[automaton.ends[cursor.state] :][:0] + _ending(
                    automaton, cursor
                )
            automaton.check()
            cursor = Cursor()
            for place, token in enumerate(other, 1):
                automaton.step(cursor, token)
                longest = max(size for size in range(place + 1) if _occurs(other[place - size : place], automaton.tokens))
                assert cursor.length == longest


def _ending(automaton: SuffixAutomaton, cursor: Cursor) -> list[int]:
    end = automaton.ends[cursor.state]
    return automaton.tokens[end - cursor.length : end]


def _occurs(part: list[int], text: list[int]) -> bool:
    return any(text[at : at + len(part)] == part for at in range(len(text) - len(part) + 1))


class TestSuffix:
    def test_own_text_is_copied_the_more_the_longer_the_match(self) -> None:
        text = list(range(10, 40))
        assert guesses(SuffixDrafter(), sequence([*text, 1, 10, 11])) == (12, 13, 14, 15)
        assert guesses(SuffixDrafter(), sequence([*text, 1, 10, 11, 12, 13]), 6) == (14, 15, 16, 17, 18, 19)
        assert guesses(SuffixDrafter(), sequence([*text, 1, 10])) == ()

    def test_other_tokens_that_followed_are_guessed_beside_the_latest(self) -> None:
        text = [1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 9, 1, 2, 50, 51, 1, 2]
        assert tree(SuffixDrafter(branches=2), sequence(text), 3) == ((50, 51, 1, 3, 7, 8), (0, 1, 2, 0, 1, 2))
        assert tree(SuffixDrafter(branches=2), sequence([*text, 3]), 3) == ((7, 8, 9, 4, 5, 6), (0, 1, 2, 0, 1, 2))
        drafter = SuffixDrafter(branches=3)
        for other in range(3):
            drafter.finish(sequence([0], [20, 21, 30 + other, 40 + other]), kept=True)
        assert tree(drafter, sequence([5], [20, 21]), 3) == ((32, 42, 31, 41, 30, 40), (0, 1, 0, 1, 0, 1))

    def test_a_period_goes_on(self) -> None:
        assert guesses(SuffixDrafter(), sequence([1, 2, 3, 1, 2, 3, 1, 2]), 7) == (3, 1, 2, 3, 1, 2, 3)

    def test_outputs_of_the_same_namespace_are_remembered_and_no_others(self) -> None:
        drafter = SuffixDrafter()
        drafter.finish(sequence([1], [20, 21, 22, 23, 24], "a"), kept=True)
        drafter.finish(sequence([1], [20, 21, 30, 31, 32], "b"), kept=False)
        assert guesses(drafter, sequence([1, 5], [20, 21], "a"), 2) == (22, 23)
        assert guesses(drafter, sequence([1, 5], [20, 21], "b")) == ()
        assert guesses(drafter, sequence([1, 5], [23, 24], "a")) == ()

    def test_old_outputs_make_room(self) -> None:
        drafter = SuffixDrafter(remembered=200)
        for number in range(100):
            drafter.finish(sequence([0], [1000 + 10 * number + at for at in range(10)]), kept=True)
        assert sum(len(part.tokens) for part in drafter._memories[""].parts) <= 2 * (100 + 13)
        assert guesses(drafter, sequence([0, 1990], [1991]), 2) == (1992, 1993)
        assert guesses(drafter, sequence([0, 1000], [1001])) == ()

    def test_a_sequence_goes_on_being_followed_while_memory_moves(self) -> None:
        drafter, one = SuffixDrafter(remembered=60), sequence([1, 2])
        for number in range(20):
            one.tokens += [100 + 10 * number, 101 + 10 * number]
            drafter.finish(sequence([0], [100 + 10 * number + at for at in range(10)]), kept=True)
            assert guesses(drafter, one, 2) == (102 + 10 * number, 103 + 10 * number)

    def test_a_namespace_that_was_forgotten_is_followed_afresh_when_it_comes_again(self) -> None:
        drafter, one = SuffixDrafter(), sequence([1, 2], list(range(10, 30)), "a")
        drafter.finish(sequence([1], list(range(10, 60)), "a"), kept=True)
        assert guesses(drafter, one, 2) == (30, 31)
        for number in range(MAX_NAMESPACES):
            drafter.finish(sequence([1], [5, 6, 7, 8], f"other {number}"), kept=True)
        drafter.finish(sequence([1], [29, 30, 70, 71], "a"), kept=True)
        one.tokens.append(30)
        assert guesses(drafter, one, 2) == (70, 71)


class TestRadix:
    def test_the_most_used_branch_is_read_to_its_end(self) -> None:
        pool = BlockPool(100, 1)
        tree = RadixTree(pool)

        def insert(*tokens: int) -> None:
            held = pool.allocate(len(tokens))
            assert held is not None
            tree.insert(PrefixKey("", tokens), held)
            pool.release(held)

        insert(1, 2, 3, 4, 5)
        insert(1, 2, 3, 7, 8, 9)
        tree.match(PrefixKey("", (1, 2, 3, 7, 8))).release()

        def read(*tokens: int, count: int = 4) -> tuple[int, ...]:
            return tree.continuation(PrefixKey("", tokens), count)

        assert read(1, 2) == (3, 7, 8, 9)
        assert read(1, 2, count=2) == (3, 7)
        assert read(1, 2, 3, 4) == (5,)
        assert read(1, 2, 3, 4, 5) == read(1, 9) == read(4) == ()
        assert tree.continuation(PrefixKey("other", (1,)), 4) == ()

    def test_other_branches_are_guessed_where_earlier_runs_parted(self) -> None:
        pool, size = BlockPool(100, 1), 3
        tree_of_runs = RadixTree(pool)
        for run, uses in (
            ((1, 2, 3, 4, 5, 6, 7), 3),
            ((1, 2, 3, 4, 8, 9), 2),
            ((1, 2, 3, 4, 10), 1),
            ((1, 2, 11, 12, 13, 14), 1),
        ):
            held = pool.allocate(len(run))
            assert held is not None
            tree_of_runs.insert(PrefixKey("", run), held)
            pool.release(held)
            for _ in range(uses):
                tree_of_runs.match(PrefixKey("", run)).release()
        assert tree_of_runs.forks(PrefixKey("", (1,)), 5, 1, size) == ((1, (11, 12, 13)), (3, (8, 9)))
        assert tree_of_runs.forks(PrefixKey("", (1, 2, 3)), 5, 2, size) == ((1, (8, 9)), (1, (10,)))
        assert tree_of_runs.forks(PrefixKey("", (1, 9)), 5, 2, size) == ()

        def read(one: Sequence, count: int) -> tuple[int, ...]:
            return tree_of_runs.continuation(PrefixKey("", one.tokens), count)

        def read_forks(one: Sequence, count: int, width: int, reach: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
            return tree_of_runs.forks(PrefixKey("", one.tokens), count, width, reach)

        drafter, one = RadixDrafter(read, read_forks, 2), sequence([1])
        assert tree(drafter, one, 4) == ((2, 3, 4, 5, 8, 11, 12, 13), (0, 1, 2, 3, 3, 1, 2, 3))
        one.tokens += [2, 3]
        assert tree(drafter, one, 3) == ((4, 5, 6, 8, 9), (0, 1, 2, 1, 2))
        one.tokens += [4, 8]
        assert tree(drafter, one, 3) == ((9,), ())

    def test_a_stretch_is_read_once_and_followed(self) -> None:
        asked: list[int] = []

        def read(one: Sequence, count: int) -> tuple[int, ...]:
            asked.append(one.num_tokens)
            return tuple(range(10, 20)) if one.tokens[-1] == 9 else ()

        drafter, one = RadixDrafter(read), sequence([8, 9])
        assert guesses(drafter, one, 3) == (10, 11, 12)
        one.tokens += [10, 11, 12, 13]
        assert guesses(drafter, one, 3) == (14, 15, 16)
        assert asked == [2]
        one.tokens += [14, 99]
        assert guesses(drafter, one, 3) == () == guesses(drafter, one, 3)
        assert asked == [2, 8]
        one.tokens += [0] * PATIENCE
        assert guesses(drafter, one, 3) == ()
        assert asked == [2, 8, 8 + PATIENCE]


class TestGrammar:
    def held(self, *sets: set[int], output: int = 0) -> Sequence:
        one = sequence([1, 2], [])
        one.grammar = ListGrammar(tuple(map(frozenset, sets)))  # type: ignore[assignment]
        one.matcher = one.grammar.matcher()
        return one

    def drafter(self, branches: int = 1) -> GrammarDrafter:
        return GrammarDrafter(VOCABULARY, TABLE.bytes_of, branches)

    def test_others_of_a_few_are_guessed_beside_the_likeliest_with_what_is_forced_behind_them(self) -> None:
        drafter, one = self.drafter(branches=2), self.held({3, 30, 31}, {4}, {5, 32}, {6})
        assert tree(drafter, one, 3) == ((30, 4, 32, 5, 31, 4), (0, 1, 2, 2, 0, 1))
        done = self.held({3, 30, 31}, {4}, {5, 32}, {6})
        done.grammar = one.grammar
        done.tokens += [3, 4, 5, 6]
        drafter.finish(done, kept=True)
        assert tree(drafter, one, 2) == ((3, 4, 30, 4), (0, 1, 0, 1))
        assert one.matcher is not None and one.matcher.at == 0  # type: ignore[attr-defined]

    def test_a_single_allowed_token_and_what_is_forced_behind_it(self) -> None:
        one = self.held({5}, {6}, {7}, {8, 9, 30})
        found = self.drafter().propose({one: 3})[one]
        assert (found.tokens, found.grade) == ((5, 6, 7), ONLY)
        assert one.matcher is not None and one.matcher.at == 0  # type: ignore[attr-defined]

    def test_of_few_the_longest_until_one_was_seen(self) -> None:
        drafter, one = self.drafter(), self.held({3, 30}, {4}, {5, 31})
        found = drafter.propose({one: 8})[one]
        assert (found.tokens, found.grade) == ((30, 4, 31), FORKED)
        done = self.held({3, 30}, {4}, {5, 31})
        done.grammar = one.grammar
        done.tokens += [3, 4, 5]
        drafter.finish(done, kept=True)
        assert guesses(drafter, one) == (3, 4, 5)
        other = self.held({3, 30}, {4}, {5, 31})
        other.grammar, other.namespace = one.grammar, "other"
        assert guesses(drafter, other) == (30, 4, 31)

    def test_a_matcher_that_breaks_on_a_guess_is_made_anew(self) -> None:
        one = self.held({3}, {5, 6}, {7, 8})
        one.grammar = ListGrammar(one.grammar.sets, broken_at=2)  # type: ignore[union-attr, assignment]
        one.matcher = one.grammar.matcher()
        one.tokens.append(3)
        assert one.matcher.advance([3]) == 1
        assert guesses(self.drafter(), one) == ()
        assert one.matcher.at == 1 and not one.draftable  # type: ignore[attr-defined]

    def test_without_a_grammar_nothing_is_said(self) -> None:
        assert guesses(self.drafter(), sequence([1, 2])) == ()
