"""Where top-k, top-p and min-p cut off the scores of a row, found by bisection: a few passes over the row, no sort.

Called by `draw` for batches in which a row filters. The bracket is always two scores of the row, so the search ends at a score.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from branchpoint.kernels.drawing import DrawOptions

__all__ = ["find_thresholds", "masked_logits", "row_best"]

BLOCK = 4096
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def masked_logits(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    row: tl.tensor,
    mask_row: tl.tensor,
    columns: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
) -> tl.tensor:
    """The logits of a row at `columns`, minus infinity outside the vocabulary and where row `mask_row` of the mask hides them."""
    inside = columns < vocabulary
    logits = tl.load(logits_ptr + row.to(tl.int64) * vocabulary + columns, mask=inside, other=-float("inf"))
    if mask_row >= 0:  # hidden behind the load: one that left tokens out would load them one by one
        word = tl.load(mask_ptr + mask_row.to(tl.int64) * words + (columns >> 5), mask=inside, other=0)
        logits = tl.where(((word >> (columns & 31)) & 1) != 0, logits, -float("inf"))
    return logits


@triton.jit
def row_best(best_ptr: tl.tensor, row: tl.tensor, segments: tl.tensor, SEGMENTS: tl.constexpr) -> tl.tensor:
    """The largest of a row's segments, NaN where one is."""
    each = tl.arange(0, SEGMENTS)
    bests = tl.load(best_ptr + row * segments + each, mask=each < segments, other=-float("inf"))
    broken = tl.max((bests != bests).to(tl.int32), axis=0) > 0
    return tl.where(broken, float("nan"), tl.max(tl.where(bests != bests, -float("inf"), bests), axis=0))


@triton.jit
def _scores(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    row: tl.tensor,
    mask_row: tl.tensor,
    columns: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
) -> tl.tensor:
    """Logits below the best over temperature, as `drawing` rounds them: at most 0."""
    logits = masked_logits(logits_ptr, mask_ptr, row, mask_row, columns, vocabulary, words)
    return tl.div_rn(logits - best, tl.zeros_like(logits) + temperature)


@triton.jit
def _measure(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    row: tl.tensor,
    mask_row: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    pivot: tl.tensor,
    MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Of the scores that reach `pivot` the number, or with MASS the sum of exponentials, and the least; and the largest below."""
    total = tl.zeros((BLOCK,), tl.float32)
    least = tl.zeros((BLOCK,), tl.float32)
    below = tl.full((BLOCK,), -float("inf"), tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        scores = _scores(logits_ptr, mask_ptr, row, mask_row, columns, vocabulary, words, best, temperature)
        reached = scores >= pivot
        total += tl.where(reached, tl.exp(scores) if MASS else 1.0, 0.0)
        least = tl.minimum(least, tl.where(reached, scores, 0.0))
        below = tl.maximum(below, tl.where(reached, -float("inf"), scores))
    return tl.sum(total.to(tl.float64), axis=0), tl.min(least, axis=0), tl.max(below, axis=0)


@triton.jit
def _search(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    row: tl.tensor,
    mask_row: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    target: tl.tensor,
    MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The largest score whose measure reaches `target`; that of the score `low` does.

    Each pass halves either the bracket's width or the number of floats in it, in turn: 64 passes at most, some 12 as a rule.
    """
    high = low * 0.0
    by_width = True
    while low < high:
        bits_low, bits_high = tl.abs(low).to(tl.int32, bitcast=True), tl.abs(high).to(tl.int32, bitcast=True)
        by_bits = -(bits_high + (bits_low - bits_high) // 2).to(tl.float32, bitcast=True)
        pivot = tl.where(by_width, low + (high - low) * 0.5, by_bits)
        pivot = tl.where((pivot > low) & (pivot <= high), pivot, high)
        total, least, below = _measure(
            logits_ptr, mask_ptr, row, mask_row, vocabulary, words, best, temperature, pivot, MASS, BLOCK
        )  # fmt: skip
        reached = total >= target
        low = tl.where(reached, least, low)
        high = tl.where(reached, high, below)
        by_width = not by_width
    return low


@triton.jit
def _last_tie(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    row: tl.tensor,
    mask_row: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    best: tl.tensor,
    temperature: tl.tensor,
    edge: tl.tensor,
    target: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The last of the scores equal to `edge` that is needed for a mass of `target`, by its place in the row."""
    above = tl.zeros((BLOCK,), tl.float32)
    equal = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, vocabulary, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        scores = _scores(logits_ptr, mask_ptr, row, mask_row, columns, vocabulary, words, best, temperature)
        above += tl.where(scores > edge, tl.exp(scores), 0.0)
        equal += (scores == edge).to(tl.int32)
    lacking, weight, ties = target - tl.sum(above.to(tl.float64), axis=0), tl.exp(edge).to(tl.float64), tl.sum(equal, axis=0)
    last = vocabulary
    if lacking < weight * (ties - 1):
        seen = ties * 0
        for begin in range(0, vocabulary, BLOCK):
            columns = begin + tl.arange(0, BLOCK)
            scores = _scores(logits_ptr, mask_ptr, row, mask_row, columns, vocabulary, words, best, temperature)
            is_tie = (scores == edge).to(tl.int32)
            before = seen + tl.cumsum(is_tie, axis=0) - is_tie
            first = tl.min(tl.where((is_tie > 0) & (weight * (before + 1) >= lacking), columns, vocabulary), axis=0)
            last = tl.minimum(last, first)
            seen += tl.sum(is_tie, axis=0)
    return last


@triton.jit
def _threshold_kernel(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    mask_row_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    top_k_ptr: tl.tensor,
    top_p_ptr: tl.tensor,
    least_ptr: tl.tensor,
    best_ptr: tl.tensor,
    edge_ptr: tl.tensor,
    last_ptr: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    segments: tl.tensor,
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a row: the least score that is kept, and the last place at which a score equal to it is."""
    row = tl.program_id(0)
    temperature, mask_row = tl.load(temperature_ptr + row), tl.load(mask_row_ptr + row)
    top_k, top_p, least = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(least_ptr + row)
    best = row_best(best_ptr, row, segments, SEGMENTS)
    edge, last = tl.zeros_like(best) + LOWEST, tl.zeros_like(row) + vocabulary
    if (temperature > 0) & (tl.abs(best) < float("inf")) & ((top_k > 0) | (top_p < 1)):
        count, edge, _ = _measure(
            logits_ptr, mask_ptr, row, mask_row, vocabulary, words, best, temperature, edge, False, BLOCK
        )  # fmt: skip
        if (top_k > 0) & (top_k < count):
            target = top_k.to(tl.float64)
            edge = _search(
                logits_ptr, mask_ptr, row, mask_row, vocabulary, words, best, temperature, edge, target, False, BLOCK
            )  # fmt: skip
        if top_p < 1:
            mass, _, _ = _measure(
                logits_ptr, mask_ptr, row, mask_row, vocabulary, words, best, temperature, edge, True, BLOCK
            )  # fmt: skip
            edge = _search(
                logits_ptr, mask_ptr, row, mask_row, vocabulary, words, best, temperature, edge, top_p * mass, True, BLOCK
            )  # fmt: skip
            last = _last_tie(
                logits_ptr, mask_ptr, row, mask_row, vocabulary, words, best, temperature, edge, top_p * mass, BLOCK
            )  # fmt: skip
    tl.store(last_ptr + row, tl.where(least > edge, vocabulary, last))
    tl.store(edge_ptr + row, tl.maximum(edge, least))


def find_thresholds(logits: Tensor, options: DrawOptions, mask: Tensor | None, bests: Tensor) -> tuple[Tensor, Tensor]:
    """What of each row may be drawn: the least score float32 [R], and the last place int32 [R] at which one equal to it may.

    Scores are (logits - best) / temperature. logits float32 [R, V], mask as in `drawing.draw_rows`, bests float32 [R, segments]
    the largest allowed logits of each segment.
    """
    rows, vocabulary = logits.shape
    edges, lasts = logits.new_empty(rows), logits.new_empty(rows, dtype=torch.int32)
    segments = bests.shape[1]
    _threshold_kernel[(rows,)](
        logits, options.mask_row if mask is None else mask, options.mask_row, options.temperature, options.top_k, options.top_p,
        options.least, bests, edges, lasts, vocabulary, -(-vocabulary // 32), segments,
        SEGMENTS=triton.next_power_of_2(segments), BLOCK=min(BLOCK, triton.next_power_of_2(vocabulary)), num_warps=16,
    )  # fmt: skip
    return edges, lasts
