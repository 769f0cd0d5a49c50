"""The classical rule keeps the distribution: chi-square over 50,000 draws, masked and unmasked; in samplers and an engine too."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from branchpoint.constrained.mask import pack
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.rejection import OddsSampler, RejectionSampler, verify_guesses
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.messages import Call, Delta, SampleFinished
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.loader import load_model
from tests.drafting.test_model import pair, write_config
from tests.runtime.model_checks import logits_of

VOCABULARY, DRAWS = 6, 50_000
CHI_SQUARE = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5, 5: 25.7}
"""Exceeded by one in ten thousand, for so many degrees of freedom."""


def statistic(counts: np.ndarray, odds: np.ndarray) -> float:
    expected = odds[odds > 0] * counts.sum()
    return float(((counts[odds > 0] - expected) ** 2 / expected).sum())


def assert_distributed(tokens: Tensor, odds: Tensor) -> None:
    counts, wanted = np.bincount(tokens.numpy(), minlength=len(odds)), odds.double().numpy()
    assert not counts[wanted == 0].any()
    assert statistic(counts, wanted) < CHI_SQUARE[int((wanted > 0).sum()) - 1], f"{counts} should be {wanted * counts.sum()}"


def generator(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def odds_of(rng: torch.Generator, allowed: tuple[int, ...] | None = None) -> Tensor:
    scores = torch.randn(VOCABULARY, generator=rng, dtype=torch.float64)
    if allowed is not None:
        scores[[token for token in range(VOCABULARY) if token not in allowed]] = -torch.inf
    return scores.softmax(0)


@pytest.mark.parametrize("target_mask", [None, (1, 2, 4), (0, 5)])
@pytest.mark.parametrize("draft_mask", [None, (1, 2, 4), (0, 1, 2, 3, 5)])
def test_what_comes_of_guesses_follows_the_target(
    target_mask: tuple[int, ...] | None, draft_mask: tuple[int, ...] | None
) -> None:
    rng = generator()
    target, draft = odds_of(rng, target_mask), odds_of(rng, draft_mask)
    guesses = torch.multinomial(draft, DRAWS, replacement=True, generator=rng)
    coins = torch.rand(DRAWS, generator=rng, dtype=torch.float64)
    noise = torch.rand(DRAWS, VOCABULARY, generator=rng, dtype=torch.float64).log_().neg_().log_().neg_()
    tokens = verify_guesses(target.expand(DRAWS, -1), draft.expand(DRAWS, -1), guesses, coins, noise)
    assert_distributed(tokens, target)
    common = float(torch.minimum(target, draft).sum())
    assert float((tokens == guesses).double().mean()) == pytest.approx(common, abs=0.02)


def test_the_test_notices_a_wrong_rule() -> None:
    rng = generator()
    target, draft = odds_of(rng), odds_of(rng)
    guesses = torch.multinomial(draft, DRAWS, replacement=True, generator=rng)
    others = torch.multinomial(target, DRAWS, replacement=True, generator=rng)
    stands = torch.rand(DRAWS, generator=rng) < target[guesses]  # as if the draft had no say
    counts = np.bincount(torch.where(stands, guesses, others).numpy(), minlength=VOCABULARY)
    assert statistic(counts, target.numpy()) > 10 * CHI_SQUARE[5]


def test_equal_distributions_accept_every_guess_and_what_is_impossible_never_stands() -> None:
    odds = torch.tensor([[0.2, 0.7, 0.1]], dtype=torch.float64).expand(3, -1)
    guesses, coins = torch.tensor([0, 1, 2]), torch.tensor([0.0, 0.5, 0.999999])
    assert verify_guesses(odds, odds, guesses, coins, torch.zeros(3, 3)).tolist() == [0, 1, 2]
    target, draft = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    assert verify_guesses(target, draft, torch.tensor([0]), torch.tensor([0.0]), torch.zeros(1, 2)).tolist() == [1]


@pytest.mark.parametrize(
    ("allowed", "sampling"),
    [(None, SamplingParams(temperature=0.8)), ((0, 1, 2, 3), SamplingParams(temperature=1.5, top_k=3))],
)
def test_draws_of_the_samplers_follow_the_target(allowed: tuple[int, ...] | None, sampling: SamplingParams) -> None:
    count, rng = 800, generator(3)
    target, draft = (torch.randn(VOCABULARY, generator=rng) for _ in range(2))
    mask = None if allowed is None else np.tile(pack(allowed, VOCABULARY), (count, 1))

    def rows(stream: int) -> list[Sequence]:
        return [Sequence("c", 0, [1, 2], 2, sampling, seed=number ^ stream) for number in range(count)]

    drawn = OddsSampler(()).sample(draft.repeat(count, 1), [WantedRow(one, 1, True) for one in rows(2**40)], mask)
    verified = []
    for one, guess in zip(rows(0), drawn, strict=True):
        assert guess.token is not None and guess.odds is not None
        assert guess.odds[guess.token] > 0 and guess.odds.sum() == pytest.approx(1)
        verified.append(WantedRow(one, 1, True, (guess.token,), guess.odds))
    results = RejectionSampler(()).sample(target.repeat(count, 1), verified, mask)
    tokens = torch.tensor([result.token for result in results])
    scores = target / sampling.temperature
    kept = torch.tensor(allowed) if allowed else torch.arange(VOCABULARY)
    if sampling.top_k:
        kept = kept[scores[kept].topk(min(sampling.top_k, len(kept))).indices]
    odds = torch.zeros(VOCABULARY).index_copy_(0, kept, scores[kept].softmax(0))
    assert_distributed(tokens, odds)
    agreed = sum(token == guess.token for token, guess in zip(tokens.tolist(), drawn, strict=True))
    assert drawn[0].odds is not None
    common = float(torch.minimum(odds, torch.from_numpy(drawn[0].odds)).sum())
    assert agreed / count == pytest.approx(common, abs=0.08)


def test_greedy_rows_and_rows_without_odds_are_drawn_as_ever() -> None:
    sampler, logits = RejectionSampler(()), torch.tensor([[0.0, 3.0, 1.0]])
    odds = np.array([1, 0, 0], np.float32)
    greedy = Sequence("c", 0, [1, 2], 2, SamplingParams(temperature=0.0), seed=1)
    assert sampler.sample(logits, [WantedRow(greedy, 1, True, (0,), odds)], None)[0].token == 1
    warm = Sequence("c", 0, [1, 2], 2, SamplingParams(temperature=1.0), seed=1)
    plain = sampler.sample(logits, [WantedRow(warm, 1, True)], None)[0].token
    assert plain == super(RejectionSampler, sampler).sample(logits, [WantedRow(warm, 1, True, (0,))], None)[0].token


def test_texts_of_an_engine_follow_the_models_distribution(tmp_path: Path) -> None:
    """Of three tokens and the end, which nobody guesses, two are drawn; the draft model is another one."""
    end, prompt = 511, (5, 6, 7)
    choices = (10, 20, 30, end)
    bias = tuple((token, 100.0) for token in choices)
    sampling = SamplingParams(max_tokens=2, temperature=1.0, n=50, logit_bias=bias, skip_special_tokens=False)
    counts: Counter[tuple[int, ...]] = Counter()
    with pair(write_config(tmp_path), draft_verify="rejection", draft_tokens=2, num_pages=128) as loaded:
        for number in range(5):
            loaded.engine.submit(Call(f"c{number}", prompt, replace(sampling, seed=number)))
        texts: dict[tuple[str, int], tuple[int, ...]] = {}
        while loaded.engine.has_work:
            for event in loaded.engine.step():
                if isinstance(event, Delta):
                    texts[event.id, event.index] = texts.get((event.id, event.index), ()) + event.tokens
                elif isinstance(event, SampleFinished):
                    counts[texts.get((event.id, event.index), ())] += 1
        (drafter,) = loaded.engine.stats().drafters
        assert drafter.failure is None and drafter.drafted > 200 and drafter.accepted > 50
    model = load_model(EngineConfig(model="dummy:llama", threads=1, seed=1, cpu_weights="float32"), torch.device("cpu")).model

    def odds(tokens: tuple[int, ...]) -> dict[int, float]:
        return dict(zip(choices, logits_of(model, tokens)[-1, list(choices)].double().softmax(0).tolist(), strict=True))

    first = odds(prompt)
    expected = {(): first[end]}
    for token in choices[:-1]:
        second = odds((*prompt, token))
        expected |= {(token, other): first[token] * second[other] for other in choices[:-1]}
        expected[token,] = first[token] * second[end]
    assert sum(counts.values()) == 250 and set(counts) <= set(expected)
    keys = list(expected)
    found = statistic(np.array([counts[key] for key in keys]), np.array([expected[key] for key in keys]))
    assert found < 40.0, f"{counts} should be {expected}"  # 12 degrees of freedom: exceeded by one in ten thousand
