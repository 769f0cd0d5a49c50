"""The CPU's forms of a linear against float32, and how one of them is chosen."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.layers.linear import LinearMethod, LinearSource, Plain
from branchpoint.runtime.quant.bfloat16 import Bfloat16Linear, bfloat16_fast
from branchpoint.runtime.quant.blocks import GROUP, FourBit
from branchpoint.runtime.quant.int4 import Int4
from branchpoint.runtime.quant.int8 import Int8
from branchpoint.runtime.quant.measured import FORMS, Measured, fastest
from branchpoint.runtime.weights.checkpoint import Stored
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.model_checks import logits_of

CPU = torch.device("cpu")
ROWS = (1, 2, 3, 17, 130)


def source(outputs: int, inputs: int, *, blocks: bool = False, bias: bool = False, parts: int = 1) -> LinearSource:
    generator = torch.Generator().manual_seed(outputs + inputs)
    stored = []
    for index in range(parts):
        weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
        if blocks:
            four = FourBit.rounded(weight)
            stored.append(Stored(f"w{index}", (outputs, inputs), "Q4_1", four.dense, lambda four=four: four))
        else:
            stored.append(Stored(f"w{index}", (outputs, inputs), "F32", lambda weight=weight: weight))
    return LinearSource("w", tuple(stored), torch.randn(outputs * parts, generator=generator) if bias else None)


def error(method: LinearMethod, given: LinearSource, rows: int) -> float:
    """Of the outputs, relative to float32's; inputs have outliers as those of real models have."""
    x = torch.randn(rows, given.shape[1], generator=torch.Generator().manual_seed(rows))
    x[:, 3] *= 8.0
    expected, got = Plain(CPU, torch.float32).create(given).apply(x), method.create(given).apply(x)
    assert got.shape == expected.shape
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [False, True])
def test_int8_is_near_float32(rows: int, bias: bool) -> None:
    assert 0 < error(Int8(), source(80, 96, bias=bias, parts=2), rows) < 0.03


def test_int8_rows_do_not_depend_on_what_is_batched_with_them() -> None:
    linear = Int8().create(source(64, 64))
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    loud = torch.cat((x, 1000.0 * x))
    assert torch.equal(linear.apply(loud)[:6], linear.apply(x))
    for rows in (x, 1000.0 * x, x.abs() + 0.1, -x.abs() - 0.1):  # alone, too
        assert torch.equal(torch.cat([linear.apply(row.unsqueeze(0)) for row in rows]), linear.apply(rows))


@pytest.mark.parametrize("rows", ROWS)
def test_int8_with_seven_bit_activations_for_a_cpu_whose_products_overflow(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchpoint.runtime.quant.int8._saturates", lambda: True)
    assert 0 < error(Int8(), source(80, 96, bias=True), rows) < 0.05


def test_int8_takes_rows_of_zeros_and_of_one_sign() -> None:
    linear = Int8().create(source(48, 32, bias=True))
    exact = Plain(CPU, torch.float32).create(source(48, 32, bias=True))
    x = torch.stack((torch.zeros(32), torch.full((32,), 3.0), torch.full((32,), -2.0), torch.linspace(1.0, 2.0, 32)))
    torch.testing.assert_close(linear.apply(x), exact.apply(x), atol=0.1, rtol=0.05)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outputs", "bias"), [(64, False), (64, True), (50, False), (50, True)])
def test_int4_holds_the_files_blocks(outputs: int, bias: bool, rows: int) -> None:
    assert error(Int4(), source(outputs, 96, blocks=True, bias=bias), rows) < 0.006


def test_int4_of_float_weights_rounds_them_to_sixteen_steps() -> None:
    assert 0.02 < error(Int4(), source(64, 128), 5) < 0.12


def test_int4_refuses_inputs_it_cannot_group() -> None:
    with pytest.raises(ModelError, match="multiples of 32, but w has 40"):
        Int4().create(source(16, 40))


@pytest.mark.skipif(not bfloat16_fast(), reason="this CPU has no bfloat16 instructions")
@pytest.mark.parametrize("rows", ROWS)
def test_bfloat16_is_near_float32(rows: int) -> None:
    given = source(80, 96, bias=True)

    class Method:
        def create(self, source: LinearSource) -> Bfloat16Linear:
            return Bfloat16Linear(source.dense(), source.bias)

    assert error(Method(), given, rows) < 0.01


def test_blocks_state_the_error_of_their_rounding() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    blocks = FourBit.rounded(weight)
    measured = float((blocks.dense() - weight).norm() / weight.norm())
    assert blocks.relative_error() == pytest.approx(measured, rel=0.05)
    assert blocks.scale.shape == (64, 256 // GROUP)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_measured_linears_are_near_float32_for_any_number_of_rows(rows: int, blocks: bool) -> None:
    method = Measured(FORMS)
    assert error(method, source(64, 64, blocks=blocks, bias=True), rows) < 0.03
    ((key, chosen),) = method.choices.items()
    assert key == (64, 64, blocks)
    assert len(chosen) == 3
    assert set(chosen) <= set(FORMS) - (set() if blocks else {"int4"})


class Race:
    """Forms that take as long as they are told to, by a clock of their own."""

    def __init__(self, **milliseconds: tuple[float, ...]) -> None:
        self.now = 0.0
        self.forms = {name: self.form(dict(zip((1, 32, 128), times, strict=True))) for name, times in milliseconds.items()}

    def form(self, milliseconds: dict[int, float]) -> Callable[[Tensor], Tensor]:
        def apply(x: Tensor) -> Tensor:
            self.now += milliseconds[x.shape[0]] / 1000
            return x

        return apply

    def winners(self, read_seconds: float = 0.0) -> tuple[str, ...]:
        return fastest(self.forms, 8, 8, 1, read_seconds, lambda: self.now)


def test_the_fastest_form_is_chosen_for_each_number_of_rows() -> None:
    race = Race(int4=(1.0, 15.0, 70.0), float32=(5.0, 8.0, 20.0))
    assert race.winners() == ("int4", "float32", "float32")


def test_no_form_counts_as_faster_than_its_bytes_can_be_read() -> None:
    race = Race(int4=(1.0, 1.5, 5.0), float32=(0.8, 1.2, 2.0))
    assert race.winners() == ("float32",) * 3
    assert race.winners(1.4e-3 / (8 * 8 * 4)) == ("int4", "int4", "float32")


def test_the_form_of_fewer_rows_stays_while_no_other_is_clearly_faster() -> None:
    near = Race(int4=(1.0, 4.0, 16.0), bfloat16=(2.0, 3.6, 9.0))
    assert near.winners() == ("int4", "int4", "bfloat16")


def test_a_coarse_form_must_win_by_a_margin() -> None:
    assert Race(int4=(3.0,) * 3, int8=(2.8,) * 3).winners() == ("int4",) * 3
    assert Race(int4=(3.0,) * 3, int8=(1.0,) * 3).winners() == ("int8",) * 3


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("form", "bound"), [("int8", 0.1), ("int4", 0.4)])
def test_a_whole_model_in_one_form(family: str, form: str, bound: float) -> None:
    exact, rounded = (
        logits_of(load_model(EngineConfig(model=f"dummy:{family}", cpu_weights=weights, seed=4), CPU).model, [7, 8, 9])  # type: ignore[arg-type]
        for weights in ("float32", form)
    )
    assert 0 < (rounded - exact).norm() / exact.norm() < bound


def test_auto_keeps_float_checkpoints_exact() -> None:
    auto, exact = (
        logits_of(load_model(EngineConfig(model="dummy:llama", cpu_weights=weights), CPU).model, [7, 8, 9])  # type: ignore[arg-type]
        for weights in ("auto", "float32")
    )
    assert torch.equal(auto, exact)
