"""Triton's draw against the plain form: the same token for the same logits, options, mask and seed."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from branchpoint.kernels import draw, drawing
from branchpoint.kernels.drawing import DrawOptions

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Row = dict[str, float]


def _options(rows: Sequence[Row], mask_rows: Sequence[int] | None = None) -> DrawOptions:
    def column(name: str, default: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([row.get(name, default) for row in rows], dtype=dtype, device=DEVICE)

    return DrawOptions(
        temperature=column("temperature", 1.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float64),
        least=torch.tensor([math.log(row["min_p"]) if "min_p" in row else -math.inf for row in rows], device=DEVICE),
        seed=torch.tensor([int(row.get("seed", number)) for number, row in enumerate(rows)], device=DEVICE),
        position=torch.arange(len(rows), device=DEVICE) * 7,
        mask_row=torch.tensor(mask_rows or [-1] * len(rows), dtype=torch.int32, device=DEVICE),
        draws=any(row.get("temperature", 1.0) > 0 for row in rows),
        filters=any(row.keys() & {"top_k", "top_p", "min_p"} for row in rows),
    )


def _logits(rows: int, vocabulary: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)).to(DEVICE) * spread


def _mask(vocabulary: int, *allowed: Sequence[int]) -> torch.Tensor:
    bits = np.zeros((len(allowed), -(-vocabulary // 32) * 32), dtype=np.uint8)
    for row, tokens in zip(bits, allowed, strict=True):
        row[list(tokens)] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32)).to(DEVICE)


def _same(logits: torch.Tensor, options: DrawOptions, mask: torch.Tensor | None = None) -> list[int]:
    before = logits.clone()
    tokens, bests = draw.draw_rows(logits, options, mask)
    expected, expected_bests = drawing.draw_rows(logits, options, mask)
    usable = expected_bests.isfinite()
    assert tokens[usable].tolist() == expected[usable].tolist()
    torch.testing.assert_close(bests, expected_bests, atol=0, rtol=0, equal_nan=True)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    return tokens.tolist()


KINDS: list[Row] = [
    {"temperature": 0},
    {},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 5, "temperature": 3.0},
    {"top_p": 0.9},
    {"top_p": 0.3, "temperature": 2.0},
    {"min_p": 0.2, "temperature": 2.0},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.01, "temperature": 1.5},
    {"top_p": 1e-9, "seed": -(2**63)},
    {"top_k": 10**6, "min_p": 1.0, "seed": 2**63 - 1},
    {"temperature": 1e-30, "top_p": 0.5},
]


@pytest.mark.parametrize(
    ("vocabulary", "seed"),
    [(1, 0), (33, 1), (4097, 3), *(pytest.param(size, size, marks=pytest.mark.slow) for size in (500, 9000, 20000))],
)
def test_rows_of_all_kinds_draw_the_plain_forms_tokens(vocabulary: int, seed: int) -> None:
    _same(_logits(len(KINDS), vocabulary, seed), _options(KINDS))


def test_batches_of_one_kind_leave_out_what_they_do_not_need() -> None:
    logits = _logits(3, 5000)
    assert _same(logits, _options([{"temperature": 0}] * 3)) == logits.argmax(-1).tolist()
    _same(logits, _options([{}] * 3))
    assert draw.draw_rows(logits[:0], _options([]), None)[0].shape == (0,)


def test_masks_hide_tokens_of_their_rows_alone() -> None:
    vocabulary = 4200
    kinds = [KINDS[number] for number in (0, 1, 2, 5, 6, 8)]
    logits = _logits(len(kinds), vocabulary, 5)
    mask = _mask(vocabulary, range(7, vocabulary, 3), [0, 4199], [31])
    mask_rows = [number % 4 - 1 for number in range(len(kinds))]
    tokens = _same(logits, _options(kinds, mask_rows), mask)
    for token, mask_row in zip(tokens, mask_rows, strict=True):
        assert mask_row != 1 or token in (0, 4199)
        assert mask_row != 2 or token == 31


@pytest.mark.parametrize("count", [6, pytest.param(300, marks=pytest.mark.slow)])
def test_many_draws_agree(count: int) -> None:
    rows: list[Row] = [{"temperature": 0.5 + number % 5, "seed": number} for number in range(count)]
    _same(_logits(1, 300).expand(count, -1).contiguous(), _options(rows))
    filtered: list[Row] = [{"top_p": 0.05 * (number % 20 + 0.5), "temperature": 2.0, "seed": number} for number in range(count)]
    _same(_logits(count, 300, 9), _options(filtered))


def test_ties_go_to_the_lowest_token_and_stay_at_the_edge_of_top_k() -> None:
    logits = torch.zeros(4, 5000, device=DEVICE)
    logits[0, [77, 4800]] = 5
    logits[1, [4999, 4998]] = 1
    assert _same(logits, _options([{"temperature": 0}] * 4)) == [77, 4998, 0, 0]
    few: list[Row] = [{"top_p": share, "seed": number} for number, share in enumerate([0.5, 0.25, 0.75, 1e-3])]
    assert all(
        token < 5000 * share + 1
        for token, share in zip(_same(logits[[2] * 4], _options(few)), [0.5, 0.25, 0.75, 1e-3], strict=True)
    )
    _same(logits[[0, 1, 0, 1]].round(), _options([{"top_k": 1}, {"top_k": 1}, {"top_k": 2}, {"top_k": 3}]))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_unusable_rows_are_told_by_their_best_logit_and_spoil_no_other(value: float) -> None:
    kinds = [KINDS[number] for number in (0, 0, 7, 7, 1, 1)]
    logits = _logits(len(kinds), 500, 6)
    alone = _same(logits, _options(kinds))
    logits[1::2] = value
    tokens = _same(logits, _options(kinds))
    assert tokens[::2] == alone[::2]
    assert not draw.draw_rows(logits, _options(kinds), None)[1][1::2].isfinite().any()
    nothing = _mask(500, [])
    assert draw.draw_rows(logits[:1], _options([{}], [0]), nothing)[1].item() == -math.inf


def test_scores_far_apart_and_denormal_end_the_search() -> None:
    logits = torch.logspace(-44, 38, 500, device=DEVICE)[None].repeat(3, 1)
    _same(-logits, _options([{"top_k": 250, "temperature": 0.5}, {"top_p": 0.9}, {"top_k": 499, "temperature": 100.0}]))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 logits"):
        draw.draw_rows(_logits(2, 50).half(), _options([{}, {}]), None)
    with pytest.raises(ValueError, match="int32 mask"):
        draw.draw_rows(_logits(1, 50), _options([{}], [0]), _mask(20, [1]))
