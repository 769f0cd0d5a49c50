"""The GPU's sampler gives what the CPU's gives, for rows of all kinds together; its kernels run in Triton's interpreter."""

import math
import random

import numpy as np
import pytest
import torch

from branchpoint.constrained.grammar import mask_words
from branchpoint.runtime.device_sampler import DeviceSampler
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.plan import RowResult
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence

VOCABULARY = 205
EOS = (2, 7)


def _params(rng: random.Random) -> SamplingParams:
    def maybe(*values: float) -> float:
        return rng.choice(values)

    return SamplingParams(
        temperature=maybe(0, 0, 0.7, 1.0, 2.5),
        top_k=int(maybe(0, 0, 3, 50)),
        top_p=maybe(1.0, 1.0, 0.8, 0.3),
        min_p=maybe(0, 0, 0.1),
        presence_penalty=maybe(0, 0, 1.0),
        frequency_penalty=maybe(0, 0, -0.5),
        repetition_penalty=maybe(1.0, 1.0, 1.3),
        logit_bias=rng.choice([(), ((5, 4.0), (9, -100.0))]),
        min_tokens=int(maybe(0, 0, 4)),
        stop_token_ids=(11,),
        logprobs=rng.choice([None, None, 0, 5]),
        prompt_logprobs=rng.choice([None, None, 2]),
    )


def _rows(rng: random.Random, count: int) -> list[WantedRow]:
    rows = []
    for number in range(count):
        tokens = rng.choices(range(VOCABULARY), k=rng.randint(2, 12))
        sequence = Sequence(str(number), 0, tokens, rng.randint(1, len(tokens)), _params(rng), rng.getrandbits(64))
        last = rng.random() < 0.7
        position = len(tokens) - 1 if last else rng.randrange(len(tokens) - 1)
        if rng.random() < 0.3:
            sequence.asked[position] = tuple(rng.sample(range(VOCABULARY), k=rng.choice([1, 4, 60])))
        draft = (3, 5) if rng.random() < 0.2 else ()
        rows.append(WantedRow(sequence, position + len(draft[:1]) * last, sample=last or rng.random() < 0.3, draft=draft))
    return rows


def _mask(rng: random.Random, rows: int) -> np.ndarray:
    packed = np.full((rows, mask_words(VOCABULARY)), -1, dtype=np.int32)
    for row in packed:
        if rng.random() < 0.5:
            bits = np.zeros(len(row) * 32, dtype=np.uint8)
            bits[rng.sample(range(VOCABULARY), k=rng.choice([1, 2, 100]))] = 1
            bits[2] = 1
            row[:] = np.packbits(bits, bitorder="little").view(np.int32)
    return packed


def _same(logits: torch.Tensor, rows: list[WantedRow], mask: np.ndarray | None) -> list[RowResult]:
    before = logits.clone()
    results = DeviceSampler(EOS).sample(logits, rows, mask)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    for actual, expected in zip(results, Sampler(EOS).sample(logits, rows, mask), strict=True):
        assert (actual.token, actual.error) == (expected.token, expected.error)
        for one, other in ((actual.logprob, expected.logprob), (actual.known, expected.known)):
            assert (one is None) == (other is None)
            assert one is None or one == pytest.approx(other, abs=1e-5)
        assert actual.asked == pytest.approx(expected.asked, abs=1e-5)
        assert [token for token, _ in actual.top] == [token for token, _ in expected.top]
        assert [value for _, value in actual.top] == pytest.approx([value for _, value in expected.top], abs=1e-5)
    return results


class Odd:
    """Refuses every odd token."""

    def allows(self, token: int) -> bool:
        return token % 2 == 0

    def narrow(self, row: np.ndarray) -> None:
        row &= 0x55555555


def test_what_is_refused_of_a_loose_mask_is_drawn_again() -> None:
    rows = [WantedRow(Sequence(str(n), 0, [1, 4], 1, SamplingParams(temperature=n % 3), n), 1, sample=True) for n in range(9)]
    for number, row in enumerate(rows):
        row.sequence.residue = Odd() if number % 4 else None
    mask = np.full((len(rows), mask_words(VOCABULARY)), -1, dtype=np.int32)
    mask[:, 0] = 0xFFF
    tokens = [each.token for each in _same(torch.randn(9, VOCABULARY, generator=torch.Generator().manual_seed(3)), rows, mask)]
    assert all(token is not None and token % 2 == 0 for token, row in zip(tokens, rows, strict=True) if row.sequence.residue)


class Fails(Odd):
    """Fails when it is asked."""

    def allows(self, token: int) -> bool:
        raise BaseException(f"panicked at {token}")  # what pyo3 raises derives from nothing narrower


def test_a_grammar_that_fails_and_rows_of_forced_tokens_are_as_on_the_cpu() -> None:
    one, other = (Sequence(str(n), 0, [1, 4, 6], 1, SamplingParams(temperature=0, logprobs=1), n) for n in range(2))
    one.residue, other.residue = Odd(), Fails()
    rows = [WantedRow(one, position, sample=True) for position in range(3)] + [WantedRow(other, 2, sample=True)]
    logits = torch.zeros(4, VOCABULARY)
    logits[:, 7] = 1.0
    loose = np.full((4, mask_words(VOCABULARY)), -1, dtype=np.int32)
    sampled = [sampler.sample(logits, rows, loose) for sampler in (DeviceSampler(EOS), Sampler(EOS))]
    for results in sampled:
        assert [result.token for result in results] == [7, 7, 0, None]
        assert "panicked at 7" in str(results[3].error)


@pytest.mark.parametrize(("seed", "count"), [(0, 12), *(pytest.param(n, 40, marks=pytest.mark.slow) for n in range(1, 12))])
def test_rows_of_all_kinds_give_the_same(seed: int, count: int) -> None:
    rng = random.Random(seed)
    rows = _rows(rng, count)
    logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    _same(logits, rows, _mask(rng, count))
    if count > 12:
        _same(logits, rows, None)


def test_what_cannot_be_used_is_told_as_on_the_cpu() -> None:
    greedy, drawn = SamplingParams(temperature=0), SamplingParams(logprobs=1)
    logits = torch.zeros(6, VOCABULARY)
    for index, value in enumerate([math.nan, math.inf, -math.inf]):
        logits[index] = value
    rows = [WantedRow(Sequence("c", 0, [5], 1, params, 3), 0, sample=True) for params in (greedy, drawn) * 3]
    mask = np.full((6, mask_words(VOCABULARY)), -1, dtype=np.int32)
    mask[4] = 0
    results = _same(logits, rows, mask)
    assert [result.error is None for result in results] == [False] * 3 + [True, False, True]
    assert "allows no token" in str(results[4].error)


def test_no_rows_and_rows_that_draw_nothing() -> None:
    assert DeviceSampler(EOS).sample(torch.zeros(0, VOCABULARY), [], None) == []
    sequence = Sequence("c", 0, [5, 6], 2, SamplingParams(), 0)
    _same(torch.randn(2, VOCABULARY), [WantedRow(sequence, position, sample=False) for position in range(2)], None)
