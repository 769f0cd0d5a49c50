"""Triton's forms of a layer's small operations against the torch forms, in Triton's interpreter where there is no GPU."""

import pytest
import torch

from branchpoint.kernels import activation, adjust, norm, reference, rotary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
STEP = {torch.bfloat16: 2.0**-6, torch.float16: 2.0**-9, torch.float32: 1e-5}
"""Two units in the last place: the interpreter rounds towards zero."""


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def _close(actual: torch.Tensor, expected: torch.Tensor, roundings: int = 1) -> None:
    step = STEP[expected.dtype] * roundings
    torch.testing.assert_close(actual, expected, atol=step, rtol=step)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64), (5, 576), (2, 3, 100), (2, 4096)])
def test_norms_are_the_references(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, residual, weight = _random(*shape, dtype=dtype), _random(*shape, dtype=dtype, seed=1), _random(shape[-1], dtype=dtype)
    before = x.clone(), residual.clone()
    _close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed, total = norm.add_rms_norm(x, residual, weight, 1e-5)
    expected, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    _close(total, expected_total)
    _close(normed, expected)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


def test_norms_of_zeros_and_of_no_rows() -> None:
    assert not norm.rms_norm(_random(2, 96) * 0, _random(96), 1e-6).any()
    assert norm.rms_norm(_random(0, 96), _random(96), 1e-6).shape == (0, 96)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (3, 1000), (2, 2500), (0, 8)])
def test_the_gate_is_the_references(dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = 4 * _random(rows, 2 * width, dtype=dtype)
    _close(activation.silu_mul(gate_up), reference.silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "dim"), [(3, 8, 2, 64), (1, 5, 5, 80), (2, 9, 3, 96), (2, 16, 2, 128), (1, 4, 1, 256)]
)
def test_heads_are_normed_turned_and_stored(
    dtype: torch.dtype, normed: bool, tokens: int, heads: int, kv_heads: int, dim: int
) -> None:
    qkv = _random(tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    weight = _random(1, heads + kv_heads, dim, dtype=dtype, seed=1) if normed else None
    cos, sin = (table.to(DEVICE, dtype) for table in reference.rope_tables(_random(tokens, dim // 2, seed=2).cpu()))
    places = torch.tensor([7, 0, 4], device=DEVICE)[:tokens]
    caches = [torch.full((9, 2 * kv_heads, dim), 5.0, dtype=dtype, device=DEVICE) for _ in range(2)]
    q = rotary.rope_write(qkv, cos, sin, weight, 1e-6, caches[0], places)
    _close(q, reference.rope_write(qkv, cos, sin, weight, 1e-6, caches[1], places), 8 if normed else 2)
    _close(caches[0], caches[1], 8 if normed else 2)
    assert (caches[0][[1, 2, 3, 5, 6, 8]] == 5).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_keys_and_values_go_into_eight_bits_by_their_heads_scales(dtype: torch.dtype) -> None:
    """Numbers that eight bits hold exactly, as the interpreter rounds 1.97 to 1."""
    qkv, places = (3 * _random(2, 8, 64, dtype=dtype)).round(), torch.tensor([3, 1], device=DEVICE)
    cos, sin = torch.ones(2, 1, 64, dtype=dtype, device=DEVICE), torch.zeros(2, 1, 64, dtype=dtype, device=DEVICE)
    scales = torch.tensor([0.5, 0.125, 2.0**-9, 2.0], device=DEVICE)  # the third is too small for what comes
    caches = [torch.zeros(4, 4, 64, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(2)]
    rotary.rope_write(qkv, cos, sin, None, 1e-6, caches[0], places, scales)
    reference.rope_write(qkv, cos, sin, None, 1e-6, caches[1], places, scales)
    actual, expected = (cache.float() for cache in caches)
    assert torch.equal(actual, expected)
    assert expected.abs().max() == reference.FLOAT8_MAX


def test_single_logits_are_changed_in_place() -> None:
    logits, count = _random(3, 500), 300
    places = torch.randperm(1500, generator=torch.Generator().manual_seed(1))[:count].to(DEVICE)
    changes = [_random(count), 0.5 + _random(count, seed=1).abs(), _random(count, seed=2)]
    expected = logits.clone()
    reference.adjust_logits(expected, places, *changes)
    adjust.adjust_logits(logits, places, *changes)
    _close(logits, expected)
    adjust.adjust_logits(logits, places[:0], *(each[:0] for each in changes))
    with pytest.raises(ValueError, match="300 of each change"):
        adjust.adjust_logits(logits, places, *(each[:5] for each in changes))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="a weight as wide"):
        norm.rms_norm(_random(2, 8), _random(7), 1e-5)
    with pytest.raises(ValueError, match="contiguous and like x"):
        norm.add_rms_norm(_random(2, 8), _random(1, 8), _random(8), 1e-5)
    with pytest.raises(ValueError, match="side by side"):
        activation.silu_mul(_random(2, 7))
    with pytest.raises(ValueError, match="cos and sin"):
        cos = _random(3, 1, 8)
        rotary.rope_write(_random(2, 6, 8), cos, cos, None, 1e-5, _random(4, 4, 8), torch.tensor([0, 1]))
