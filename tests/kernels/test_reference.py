"""The small operations against their definitions, written out the long way."""

import pytest
import torch

from branchpoint.kernels.reference import add_rms_norm, rms_norm, rope, rope_tables, silu_mul


def _definition_of_rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.double()


@pytest.mark.parametrize("shape", [(1, 64), (5, 576), (3, 4, 32)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_rms_norm_is_its_definition(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    x, weight = (3 * torch.randn(shape)).to(dtype), torch.randn(shape[-1]).to(dtype)
    before = x.clone()
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5).double(), _definition_of_rms(x, weight, 1e-5), atol=tolerance, rtol=tolerance
    )
    assert torch.equal(x, before)


def test_rms_norm_of_zeros_is_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


def test_add_rms_norm_returns_the_new_residual_and_leaves_its_inputs() -> None:
    x, residual, weight = torch.randn(4, 16), torch.randn(4, 16), torch.randn(16)
    before = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(normed, rms_norm(x + residual, weight, 1e-5))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_rope_turns_each_pair_by_its_angle() -> None:
    angles = torch.randn(50, 4)
    cos, sin = rope_tables(angles)
    positions = torch.tensor([0, 7, 49])
    q, k = torch.randn(3, 6, 8), torch.randn(3, 2, 8)
    turned = rope(q, k, cos[positions], sin[positions])
    for x, y in zip((q, k), turned, strict=True):
        pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(3, 4), angles[positions])[:, None]
        torch.testing.assert_close(y, torch.cat((pairs.real, pairs.imag), dim=-1))


def test_silu_mul_gates_the_second_half() -> None:
    gate_up = torch.randn(3, 10)
    gate, up = gate_up[:, :5], gate_up[:, 5:]
    torch.testing.assert_close(silu_mul(gate_up), gate / (1 + torch.exp(-gate)) * up)
