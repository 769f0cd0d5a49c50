"""Whatever is generated under a grammar is accepted by an independent validator; mask and parser agree on every token."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.spec import Constraint
from branchpoint.constrained.vocabulary import Vocabulary
from tests.constrained.corpus import Generator, allowed, compiled, constraints, is_valid

CONSTRAINTS = constraints()


def generate_and_validate(compiler: GrammarCompiler, vocabulary: Vocabulary, count: int, seed: int) -> tuple[int, int]:
    """(Completed, cut) of `count` outputs over all constraints in turn; every completed one must be valid."""
    generator = Generator(vocabulary, seed)
    completed = cut = 0
    for number in range(count):
        name = list(CONSTRAINTS)[number % len(CONSTRAINTS)]
        output = generator.generate(compiled(compiler, CONSTRAINTS[name]))
        if output is None:
            cut += 1
            continue
        completed += 1
        assert is_valid(name, CONSTRAINTS[name], output.decode()), (name, output)
    return completed, cut


def test_two_hundred_random_outputs_are_valid(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    completed, cut = generate_and_validate(compiler, vocabulary, 200, seed=1)
    assert completed + cut == 200
    assert completed >= 180


@pytest.mark.slow
def test_a_thousand_random_outputs_are_valid(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    completed, cut = generate_and_validate(compiler, vocabulary, 1000, seed=2)
    assert completed + cut == 1000
    assert completed >= 900


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_the_parser_takes_exactly_the_tokens_of_the_mask(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    generator, picker = Generator(vocabulary, seed=3), random.Random(4)
    matcher = compiled(compiler, CONSTRAINTS[name]).matcher()
    for step in range(12):
        mask = allowed(matcher, vocabulary)
        inside = picker.sample(sorted(mask), min(20, len(mask)))
        outside = [token for token in picker.sample(range(vocabulary.size), 30) if token not in mask]
        nearby = [token for token in range(17) if token not in mask]
        for token in (*inside, *outside, *nearby):
            assert (matcher.advance([token]) == 1) == (token in mask), vocabulary.tokens[token]
            if token in mask:
                matcher.rollback(1)
        assert allowed(matcher, vocabulary) == mask
        assert matcher.can_end == (2 in mask) == (0 in mask)
        assert matcher.finished == (mask == {0, 2})
        if matcher.finished:
            break
        chosen = generator.choose(sorted(mask - {0, 2}), step)
        assert matcher.advance([chosen]) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(CONSTRAINTS)),
    seed=st.integers(0, 2**32 - 1),
    moves=st.lists(st.integers(-6, 6).filter(bool), min_size=1, max_size=8),
)
def test_after_a_rollback_a_cursor_is_where_it_was(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str, seed: int, moves: list[int]
) -> None:
    grammar = compiled(compiler, CONSTRAINTS[name])
    generator = Generator(vocabulary, seed)
    matcher = grammar.matcher()
    taken: list[int] = []
    for move in moves:
        if move < 0:
            count = min(-move, len(taken))
            matcher.rollback(count)
            del taken[len(taken) - count :]
        for _ in range(move):
            mask = allowed(matcher, vocabulary)
            token = generator.choose(sorted(mask), len(taken))
            if matcher.advance([token]) == 1:
                taken.append(token)
            if token in vocabulary.eos:
                break
        fresh = grammar.matcher()
        assert fresh.advance(taken) == len(taken)
        assert allowed(fresh, vocabulary) == allowed(matcher, vocabulary)
        assert (fresh.can_end, fresh.finished, fresh.forced()) == (matcher.can_end, matcher.finished, matcher.forced())


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_refused_token_changes_nothing_and_the_count_says_where(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str
) -> None:
    constraint: Constraint = CONSTRAINTS[name]
    generator = Generator(vocabulary, seed=5)
    matcher = compiled(compiler, constraint).matcher()
    first = generator.choose(sorted(allowed(matcher, vocabulary) - {0, 2}), 0)
    assert matcher.advance([first, 1, first]) == 1  # 1 is special and never text
    before = allowed(matcher, vocabulary)
    assert matcher.advance([vocabulary.size, first]) == 0
    assert matcher.advance([-1]) == 0
    assert allowed(matcher, vocabulary) == before
    row = np.full(vocabulary.size // 32 + 3, -1, dtype=np.int32)
    matcher.fill(row)
    assert not row[-3:].any()
