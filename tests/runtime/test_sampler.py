"""The sampler: order of its stages, independence of the batch, exact distributions, errors of single rows."""

import math

import numpy as np
import pytest
import torch

from branchpoint.constrained.grammar import mask_words
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.plan import RowResult
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence

EOS = 2
VOCABULARY = 77


def _row(params: SamplingParams, *, prompt: tuple[int, ...] = (5,), output: tuple[int, ...] = (), seed: int = 0) -> WantedRow:
    tokens = [*prompt, *output]
    sequence = Sequence("call", 0, tokens, len(prompt), params, seed)
    return WantedRow(sequence, len(tokens) - 1, sample=True)


def _mask(*rows: list[int] | None) -> np.ndarray:
    """Packed rows that allow just these tokens (None: all)."""
    packed = np.full((len(rows), mask_words(VOCABULARY)), -1, dtype=np.int32)
    for place, allowed in enumerate(rows):
        if allowed is not None:
            bits = np.zeros(packed.shape[1] * 32, dtype=np.uint8)
            bits[allowed] = 1
            packed[place] = np.packbits(bits, bitorder="little").view(np.int32)
    return packed


def _sample(logits: torch.Tensor, rows: list[WantedRow], mask: np.ndarray | None = None) -> list[RowResult]:
    before = logits.clone()
    results = Sampler((EOS,)).sample(logits, rows, mask)
    assert torch.equal(logits, before) or logits.isnan().any()
    return results


def _tokens(logits: torch.Tensor, rows: list[WantedRow], mask: np.ndarray | None = None) -> list[int | None]:
    return [result.token for result in _sample(logits, rows, mask)]


def _logits(count: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


GREEDY = SamplingParams(temperature=0)


def test_greedy_takes_the_lowest_of_the_best() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[1, [9, 30]] = 1
    assert _tokens(logits, [_row(GREEDY), _row(GREEDY)]) == [0, 9]


def test_draws_follow_the_distribution() -> None:
    """Chi-square over 20,000 draws, with a temperature and with a mask."""
    logits = _logits(seed=4)
    for temperature, allowed in [(1.0, None), (0.7, None), (1.5, [1, 7, 8, 40, 76])]:
        params = SamplingParams(temperature=temperature)
        draws = 4000
        rows = [_row(params, prompt=tuple(range(position % 50 + 1)), seed=position // 50) for position in range(draws)]
        mask = None if allowed is None else _mask(*[allowed] * draws)
        tokens = _tokens(logits.expand(draws, -1), rows, mask)
        scores = logits[0].double() / temperature
        if allowed is not None:
            hidden = torch.ones(VOCABULARY, dtype=torch.bool)
            hidden[allowed] = False
            scores[hidden] = -torch.inf
        expected = scores.softmax(-1) * draws
        counts = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY)
        likely = expected >= 5
        assert counts[expected == 0].sum() == 0
        chi_square = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
        degrees = int(likely.sum()) - 1
        assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_a_rows_token_does_not_depend_on_the_batch() -> None:
    kinds = [
        SamplingParams(seed=1),
        GREEDY,
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.8, temperature=1.3),
        SamplingParams(min_p=0.1, presence_penalty=1.0),
        SamplingParams(temperature=0, repetition_penalty=1.5),
    ]
    rows = [_row(kind, output=(3, 3, 9), seed=index) for index, kind in enumerate(kinds)]
    logits = _logits(len(rows))
    mask = _mask(None, None, [1, 2, 3, 60, 61, 62, 63, 64], None, [5, 6], None)
    together = _tokens(logits, rows, mask)
    alone = [_tokens(logits[i : i + 1], [rows[i]], mask[i : i + 1])[0] for i in range(len(rows))]
    backwards = _tokens(logits.flip(0), rows[::-1], mask[::-1])
    assert together == alone == backwards[::-1]


def test_same_seed_and_position_draw_the_same_token_and_others_do_not() -> None:
    logits = torch.zeros(40, VOCABULARY)
    params = SamplingParams()
    same = _tokens(logits, [_row(params, seed=2**64 - 1)] * 40)
    assert len(set(same)) == 1
    assert len(set(_tokens(logits, [_row(params, seed=seed) for seed in range(40)]))) > 15
    assert len(set(_tokens(logits, [_row(params, prompt=tuple(range(n + 1))) for n in range(40)]))) > 15


def test_a_mask_over_everything_changes_no_draw() -> None:
    rows = [_row(SamplingParams(), seed=seed) for seed in range(20)]
    logits = _logits(20)
    every = _mask(*[list(range(VOCABULARY))] * 20)
    assert _tokens(logits, rows) == _tokens(logits, rows, every)


def test_penalties_and_bias_are_their_formulas() -> None:
    params = SamplingParams(
        temperature=0, presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.7, logit_bias=((4, 3.0), (9, -2.0))
    )
    prompt, output = (4, 9, 11), (11, 12, 12, 12)
    for seed in range(30):
        logits = _logits(seed=seed)
        expected = logits[0].clone()
        expected[4] += 3
        expected[9] -= 2
        for token in {*prompt, *output}:
            expected[token] = expected[token] / 1.7 if expected[token] > 0 else expected[token] * 1.7
        for token in set(output):
            expected[token] -= 0.5 + 0.25 * output.count(token)
        assert _tokens(logits, [_row(params, prompt=prompt, output=output)]) == [int(expected.argmax())]


def test_only_tokens_up_to_a_rows_own_position_are_its_history() -> None:
    """A verification row knows the drafts before it, not those after."""
    params = SamplingParams(temperature=0, presence_penalty=2.0)
    sequence = Sequence("call", 0, [5, 6, 7, 8], 1, params, 0)
    logits = torch.zeros(1, VOCABULARY)
    logits[0, [6, 7]] = 1.0
    at = [WantedRow(sequence, position, sample=True) for position in range(4)]
    assert [_tokens(logits, [row])[0] for row in at] == [6, 7, 0, 0]


def test_min_tokens_holds_back_ends_unless_the_grammar_allows_nothing_else() -> None:
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(3,))
    logits = torch.zeros(1, VOCABULARY)
    logits[0, EOS], logits[0, 3], logits[0, 10] = 9, 8, 7
    early, late = _row(params, output=(6,)), _row(params, output=(6, 6))
    assert _tokens(logits, [early]) == [10]
    assert _tokens(logits, [late]) == [EOS]
    assert _tokens(logits, [early], _mask([EOS, 3, 20])) == [20]
    assert _tokens(logits, [early], _mask([EOS])) == [EOS]


def test_drawn_tokens_lie_in_the_filtered_set() -> None:
    logits = _logits(seed=8)
    order = logits[0].argsort(descending=True).tolist()
    top_3 = {_tokens(logits, [_row(SamplingParams(top_k=3, temperature=5), seed=seed)])[0] for seed in range(100)}
    assert top_3 == set(order[:3])
    tiny = {_tokens(logits, [_row(SamplingParams(top_p=1e-9, temperature=5), seed=seed)])[0] for seed in range(20)}
    assert tiny == {order[0]}
    assert _tokens(logits, [_row(SamplingParams(min_p=1.0))]) == [order[0]]


def test_a_tiny_temperature_is_greedy() -> None:
    logits = _logits(5) * 1e4
    rows = [_row(SamplingParams(temperature=1e-300), seed=seed) for seed in range(5)]
    assert _tokens(logits, rows) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5), SamplingParams(logprobs=2)])
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_unusable_logits_are_an_error_of_their_row_alone(params: SamplingParams, value: float) -> None:
    logits = _logits(3)
    logits[1] = value
    results = _sample(logits, [_row(params)] * 3)
    assert [result.error is None for result in results] == [True, False, True]
    assert results[1].token is None
    assert "finite" in (results[1].error or "") or "log-sum-exp" in (results[1].error or "")


def test_a_mask_that_allows_nothing_is_an_error_of_its_row() -> None:
    results = _sample(_logits(2), [_row(GREEDY), _row(SamplingParams())], _mask([], None))
    assert results[0].error is not None
    assert "allows no token" in results[0].error
    assert results[1].error is None


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    params = SamplingParams(temperature=0.5, top_k=2, logprobs=3, logit_bias=((4, 50.0),))
    logits = _logits(seed=3)
    result = _sample(logits, [_row(params)], _mask([4, 5]))[0]
    raw = logits[0].double().log_softmax(-1)
    assert result.token == 4
    assert result.logprob == pytest.approx(float(raw[4]), abs=1e-5)
    best = raw.topk(3)
    assert [token for token, _ in result.top] == best.indices.tolist()
    assert [value for _, value in result.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_scoring_rows_give_the_known_token_and_draw_nothing() -> None:
    sequence = Sequence("call", 0, [5, 6, 7], 2, SamplingParams(prompt_logprobs=1), 0)
    logits = _logits(3)
    raw = logits.double().log_softmax(-1)
    results = _sample(logits, [WantedRow(sequence, position, sample=False) for position in range(3)])
    assert [result.token for result in results] == [None] * 3
    assert [result.known for result in results[:2]] == pytest.approx([float(raw[0, 6]), float(raw[1, 7])], abs=1e-5)
    assert results[2].known is None
    assert [len(result.top) for result in results] == [1, 0, 0]  # top is asked for the prompt only


def test_a_row_tells_of_all_tokens_that_it_is_asked_for() -> None:
    asked = {0: (7, 3), 2: (1,)}
    sequence = Sequence("call", 0, [5, 6, 7, 8], 3, GREEDY, 0, asked=asked)
    logits = _logits(3)
    raw = logits.double().log_softmax(-1)
    results = _sample(logits, [WantedRow(sequence, position, sample=False) for position in range(3)])
    for position, result in enumerate(results):
        assert result.asked == pytest.approx([float(raw[position, token]) for token in asked.get(position, ())], abs=1e-5)


def test_nothing_is_reported_that_nobody_asked() -> None:
    result = _sample(_logits(), [_row(SamplingParams())])[0]
    assert (result.logprob, result.known, result.top, result.error) == (None, None, (), None)
