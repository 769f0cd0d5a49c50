"""Masks that take too much, and draws that are asked about: the same tokens as with exact masks, and no dead ends."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
import torch

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.engines.judged import JudgedMatcher
from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import MaskRow, Matcher, mask_words
from branchpoint.constrained.mask import allocate, iterate_allowed, pack
from branchpoint.constrained.spec import JsonSchema
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.masks import MaskFiller
from branchpoint.runtime.plan import RowResult, Slot, StepPlan
from branchpoint.runtime.sampler import MOST_REFUSALS, PATIENCE, Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.tokenizer import load_tokenizer
from tests.runtime.scripted import ListMatcher

EOS, SIZE = 2, 200
INTEGER = {"type": "integer"}
SCHEMAS: dict[str, object] = {
    "any order": {
        "type": "object",
        "properties": {"ab": INTEGER, "abc": {"type": "string", "maxLength": 3}, "b": {"type": "array", "items": INTEGER}},
        "required": ["abc", "b"],
        "additionalProperties": False,
    },
    "any order, and other keys": {"type": "object", "properties": {"a": INTEGER, "b": {"type": "null"}}, "required": ["b"]},
    "unique items": {"type": "array", "items": {"enum": ["ab", "abc", "x"]}, "uniqueItems": True, "minItems": 3},
    "unique letters": {"type": "array", "items": {"type": "string", "pattern": "^[a-r]$"}, "uniqueItems": True, "minItems": 12},
    "not a text": {"type": "object", "properties": {"a": {"type": "string", "not": {"enum": ["x", "xy"]}}}, "required": ["a"]},
    "contains": {"type": "array", "items": INTEGER, "contains": {"minimum": 5}, "maxContains": 2},
    "patterns of keys that overlap": {
        "type": "object",
        "patternProperties": {"^a": INTEGER, "b$": {"minimum": 5}},
        "additionalProperties": False,
        "minProperties": 2,
    },
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_tokenizer(None, 300, (EOS,)).vocabulary


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, 1)
    yield compiler
    compiler.close()


def matcher_of(compiler: GrammarCompiler, name: str) -> Matcher:
    constraint = JsonSchema(json.dumps(SCHEMAS[name]), whitespace="flexible", order="any")
    return compiler.compile(constraint).result(timeout=60).matcher()


def full(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
    row = allocate(1, vocabulary.size)[0]
    matcher.fill(row)
    return set(iterate_allowed(row).tolist())


def goes_on(matcher: Matcher, vocabulary: Vocabulary, token: int, depth: int) -> bool:
    """Whether a sentence may be reached after `token`, looking `depth` tokens ahead."""
    assert matcher.advance([token]) == 1
    try:
        if matcher.can_end or depth == 0:
            return True
        return any(goes_on(matcher, vocabulary, each, depth - 1) for each in full(matcher, vocabulary))
    except MatcherError:
        return False
    finally:
        matcher.rollback(1)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_loose_row_and_its_residue_say_what_the_exact_row_says(
    compiler: GrammarCompiler, vocabulary: Vocabulary, name: str
) -> None:
    matcher, chance = matcher_of(compiler, name), random.Random(name)
    assert isinstance(matcher, JudgedMatcher)
    row = allocate(1, vocabulary.size)[0]
    for _ in range(40):
        exact = full(matcher, vocabulary)
        residue = matcher.fill_loosely(row)
        loose = set(iterate_allowed(row).tolist())
        allowed = {token for token in loose if residue.allows(token)}
        assert allowed <= exact <= loose
        for token in exact - allowed:  # nothing can follow, which is only looked for where few tokens are left
            assert not goes_on(matcher, vocabulary, token, 6)
        for token in chance.sample(sorted(loose), min(20, len(loose))):
            taken = matcher.advance([token])
            matcher.rollback(taken)
            assert taken == (token in exact) or token not in allowed
        narrowed = row.copy()
        residue.narrow(narrowed)
        assert set(iterate_allowed(narrowed).tolist()) == exact
        chosen = chance.choice(sorted(allowed))
        if chosen == EOS:
            break
        assert matcher.advance([chosen]) == 1


def draw(matcher: Matcher, vocabulary: Vocabulary, sampling: SamplingParams, seed: int) -> list[int]:
    """Tokens drawn from random logits, one step after the other."""
    sampler, filler = Sampler((EOS,)), MaskFiller(vocabulary.size, workers=1)
    sequence = Sequence("call", 0, [1], 1, sampling, seed, matcher=matcher)
    noise = torch.Generator().manual_seed(seed)
    while sequence.num_output < 40:
        at = sequence.num_tokens - 1
        mask = filler.start(StepPlan((Slot(sequence, at, 1, (at,)),))).wait()
        logits = torch.randn(1, vocabulary.size, generator=noise) * 3
        logits[0, [*vocabulary.encode(b"}"), *vocabulary.encode(b"]"), EOS]] += 3
        token = sampler.sample(logits, [WantedRow(sequence, at, sample=True)], mask)[0].token
        assert token is not None
        assert sequence.residue is not None
        assert matcher.advance([token]) == 1
        sequence.tokens.append(token)
        if token == EOS:
            break
    filler.close()
    return sequence.output


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_same_tokens_are_drawn_as_with_exact_masks(compiler: GrammarCompiler, vocabulary: Vocabulary, name: str) -> None:
    for seed in range(4):
        loose = draw(matcher_of(compiler, name), vocabulary, SamplingParams(temperature=0.8), seed)
        exact = draw(matcher_of(compiler, name), vocabulary, SamplingParams(temperature=0.8, top_k=vocabulary.size), seed)
        assert loose == exact


@dataclass
class Refuses:
    """A residue that refuses some tokens, and counts what it is asked."""

    refused: frozenset[int]
    asked: list[int] = field(default_factory=list)
    narrowed: int = 0

    def allows(self, token: int) -> bool:
        self.asked.append(token)
        return token not in self.refused

    def narrow(self, row: MaskRow) -> None:
        self.narrowed += 1
        left = set(iterate_allowed(row).tolist()) - self.refused
        if not left:
            raise MatcherError("Nothing is left.")
        row[:] = pack(left, SIZE)


def result(logits: torch.Tensor, sampling: SamplingParams, mask: MaskRow, residue: Refuses | None, seed: int = 0) -> RowResult:
    sequence = Sequence("call", 0, [1], 1, sampling, seed)
    sequence.residue = residue
    return Sampler((EOS,)).sample(logits, [WantedRow(sequence, 0, sample=True)], mask[None])[0]


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 5.0])
def test_what_is_refused_is_left_out_of_the_same_draw(temperature: float) -> None:
    sampling, open_row = SamplingParams(temperature=temperature, presence_penalty=0.1), pack(range(SIZE - 3), SIZE)
    noise = torch.Generator().manual_seed(1)
    for seed in range(40):
        logits = torch.randn(1, SIZE, generator=noise) * 3
        refused = frozenset(random.Random(seed).sample(range(SIZE), SIZE * (seed % 4) // 4))
        exact = pack(set(range(SIZE - 3)) - refused, SIZE)
        residue = Refuses(refused)
        assert result(logits, sampling, open_row, residue, seed) == result(logits, sampling, exact, None, seed)
        assert residue.narrowed <= 1 and len(residue.asked) <= 2 * PATIENCE + 2


def test_where_unlikely_tokens_are_left_out_the_drawn_one_alone_is_asked_about() -> None:
    sampling, mask, logits = SamplingParams(top_k=4), pack(range(SIZE), SIZE), torch.zeros(1, SIZE)
    logits[0, 10:14] = torch.tensor([4.0, 3.9, 3.8, 3.7])
    for seed in range(20):
        free = result(logits, sampling, mask, None, seed).token
        likeliest = Refuses(frozenset({10}))
        assert result(logits, sampling, mask, likeliest, seed).token == free or free == 10
        assert free != 10 or likeliest.asked[0] == 10
        assert free is not None and result(logits, sampling, mask, Refuses(frozenset({free})), seed).token != free


def test_a_row_of_which_everything_is_refused_is_an_error_of_its_own() -> None:
    logits, mask = torch.zeros(1, SIZE), pack([3, 4], SIZE)
    few = result(logits, SamplingParams(temperature=0), mask, Refuses(frozenset({3, 4})))
    assert few.token is None and few.error is not None and "no token" in few.error
    many = result(logits, SamplingParams(), pack(range(SIZE), SIZE), Refuses(frozenset(range(SIZE))))
    assert many.token is None and many.error == "Nothing is left."


class Panics(Refuses):
    """A residue whose library fails while it is asked, in a way that isn't an Exception."""

    def allows(self, token: int) -> bool:
        raise BaseException("panicked")  # what pyo3 raises derives from nothing narrower


def test_a_grammar_that_fails_when_it_is_asked_costs_its_own_row_alone() -> None:
    rows = [WantedRow(Sequence(str(n), 0, [1], 1, SamplingParams(), n), 0, sample=True) for n in range(2)]
    rows[0].sequence.residue = Panics(frozenset())
    broken, whole = Sampler((EOS,)).sample(torch.zeros(2, SIZE), rows, np.stack([pack([3, 4], SIZE)] * 2))
    assert broken.token is None and broken.error is not None and "panicked" in broken.error
    assert whole.token in (3, 4) and whole.error is None


def test_only_the_row_behind_all_tokens_is_asked_about() -> None:
    sequence = Sequence("call", 0, [1, 5, 6], 1, SamplingParams(logprobs=1), 0)
    sequence.residue = residue = Refuses(frozenset({4}))
    rows = [WantedRow(sequence, position, sample=True) for position in range(3)]
    mask = np.full((3, mask_words(SIZE)), -1, np.int32)  # the rows of forced tokens are masked by nothing
    mask[2] = pack([3, 4], SIZE)
    logits = torch.zeros(3, SIZE)
    logits[:, 50] = 100
    results = Sampler((EOS,)).sample(logits, rows, mask)
    assert [result.token for result in results] == [50, 50, 3]
    assert set(residue.asked) <= {3, 4} and not residue.narrowed


def test_a_text_that_is_too_short_ends_where_all_else_is_refused() -> None:
    logits = torch.arange(SIZE).float()[None]
    for temperature in (0.0, 1.0):
        short = SamplingParams(temperature=temperature, min_tokens=5)
        ends = Refuses(frozenset(range(SIZE)) - {EOS})
        assert result(logits, short, pack(range(SIZE), SIZE), ends).token == EOS
        goes_on = Refuses(frozenset(range(SIZE)) - {EOS, 7})
        assert result(logits, short, pack(range(SIZE), SIZE), goes_on).token == 7
        nothing = result(logits, short, pack(range(SIZE), SIZE), Refuses(frozenset(range(SIZE))))
        assert nothing.token is None and nothing.error


def test_the_same_tokens_are_drawn_below_min_tokens(compiler: GrammarCompiler, vocabulary: Vocabulary) -> None:
    for name in ("unique letters", "any order"):
        for seed in range(3):
            short = SamplingParams(temperature=0.8, min_tokens=30)
            loose = draw(matcher_of(compiler, name), vocabulary, short, seed)
            assert loose == draw(
                matcher_of(compiler, name), vocabulary, msgspec.structs.replace(short, top_k=vocabulary.size), seed
            )


class Loose(ListMatcher):
    """A list matcher whose rows can be filled loosely."""

    def fill_loosely(self, row: MaskRow) -> Refuses:
        row[:] = -1
        return Refuses(frozenset(range(SIZE)) - self._here())


def test_a_row_of_dead_ends_is_not_asked_about_for_ever() -> None:
    class Endless(Refuses):
        def narrow(self, row: MaskRow) -> None:
            self.narrowed += 1

    residue, logits = Endless(frozenset(range(SIZE))), torch.arange(SIZE).float()[None]
    drawn = result(logits, SamplingParams(temperature=0), pack(range(SIZE), SIZE), residue)
    assert drawn.token == SIZE - 1 - MOST_REFUSALS and len(residue.asked) == MOST_REFUSALS and residue.narrowed == 1


def test_rows_are_exact_where_the_others_count() -> None:
    filler = MaskFiller(SIZE, workers=1)
    kinds = {
        SamplingParams(): True,
        SamplingParams(temperature=0, top_k=3): True,
        SamplingParams(logprobs=2): True,
        SamplingParams(top_p=0.9): False,
        SamplingParams(min_p=0.1): False,
        SamplingParams(min_tokens=1): True,
    }
    for sampling, loosely in kinds.items():
        sequence = Sequence("call", 0, [1], 1, sampling, 0, matcher=Loose((frozenset({5}),)))
        rows = filler.start(StepPlan((Slot(sequence, 0, 1, (0,)),))).wait()
        assert rows is not None and sequence.residue is not None
        assert ({token for token in iterate_allowed(rows[0]).tolist() if token < SIZE} != {5}) == loosely
    for sampling, loosely in ((SamplingParams(), True), (SamplingParams(top_p=0.9), False)):
        sequence = Sequence("call", 0, [1], 1, sampling, 0, matcher=Loose((frozenset({5}), frozenset({6, 7}))))
        sequence.residue = Refuses(frozenset())
        drafted = filler.start(StepPlan((Slot(sequence, 0, 2, (0, 1), draft=(5,)),))).wait()
        assert drafted is not None and sequence.residue is not None
        found = [[token for token in iterate_allowed(row).tolist() if token < SIZE] for row in drafted]
        assert (found == [[5], [6, 7]]) != loosely
    filler.close()
