"""Triton's log-sum-exps and best tokens against the plain form."""

import math

import pytest
import torch

from branchpoint.kernels import logprobs, reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _same(logits: torch.Tensor, count: int) -> None:
    totals, values, tokens = logprobs.top_logits(logits, count)
    expected_totals, expected_values, expected_tokens = reference.top_logits(logits, count)
    torch.testing.assert_close(totals, expected_totals, atol=1e-5, rtol=1e-6)
    assert torch.equal(values, expected_values)
    assert torch.equal(tokens, expected_tokens)


@pytest.mark.parametrize(("rows", "vocabulary", "count"), [(3, 33, 20), (2, 4097, 5), (2, 9000, 0), (1, 1, 1), (0, 50, 3)])
def test_sums_and_best_are_the_plain_forms(rows: int, vocabulary: int, count: int) -> None:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)).to(DEVICE) * 4
    _same(logits, count)
    _same(logits.round(), count)  # many ties


def test_rows_that_cannot_be_used_have_no_finite_sum_and_spoil_no_other() -> None:
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for row, value in enumerate([math.nan, math.inf, -math.inf]):
        logits[row, 4500 if value > -math.inf or value != value else slice(None)] = value
    logits[3, :4999] = -math.inf
    totals = logprobs.top_logits(logits, 2)[0]
    assert totals.isfinite().tolist() == [False] * 3 + [True] * 3
    _same(logits[3:].contiguous(), 1)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 9 tokens"):
        logprobs.top_logits(torch.zeros(2, 5, device=DEVICE), 9)
