"""Drawing a token for each row on a GPU: mask, temperature, filters, noise and argmax, without sorting a vocabulary.

Form of `drawing.draw_rows`. Rows are cut into segments, so that one alone fills the chip. `threshold` finds the filters' edge.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from branchpoint.kernels.drawing import DrawOptions
from branchpoint.kernels.threshold import find_thresholds, masked_logits, row_best

__all__ = ["draw_rows"]

SEGMENT = 4096
LOST = tl.constexpr(-25.2)
"""A score below this can't win: noise lies in [-2.9, 22.2], and the best score is 0."""


@triton.jit
def _best_kernel(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    mask_row_ptr: tl.tensor,
    best_ptr: tl.tensor,
    token_ptr: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The largest allowed logit of a segment and its token, the lowest among equals; NaN where one is."""
    row, segment = tl.program_id(0), tl.program_id(1)
    columns = segment * BLOCK + tl.arange(0, BLOCK)
    logits = masked_logits(logits_ptr, mask_ptr, row, tl.load(mask_row_ptr + row), columns, vocabulary, words)
    is_nan = logits != logits
    best, place = tl.max(tl.where(is_nan, -float("inf"), logits), axis=0, return_indices=True)
    best = tl.where(tl.max(is_nan.to(tl.int32), axis=0) > 0, float("nan"), best)
    at = row * tl.num_programs(1) + segment
    tl.store(best_ptr + at, best)
    tl.store(token_ptr + at, segment * BLOCK + place)


@triton.jit
def _mix(state: tl.tensor) -> tl.tensor:
    """The output function of splitmix64 (see `sample`), on uint64."""
    z = state + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _noise(seed: tl.tensor, position: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """Gumbel noise of `sample.gumbel_noise` for one row and tokens int32 [N], float32."""
    key = _mix(_mix(seed.to(tl.uint64)) ^ position.to(tl.uint64))
    x = tokens.to(tl.uint32) + (key >> 32).to(tl.uint32)
    x = (x ^ (x >> 17)) * 0xED5AD4BB
    x = ((x ^ (x >> 11)) + key.to(tl.uint32)) * 0xAC4C1B51
    x = (x ^ (x >> 15)) * 0x31848BAB
    x = (x ^ (x >> 14)) & 0x7FFFFFFF
    uniform = tl.minimum((x.to(tl.float32) + 0.5) * (1 / 2147483648.0), 1 - 1 / 16777216.0)
    # log1p(-u) out of log: the rounding of 1 - u is divided out again, since small u give the large noise that decides draws.
    rest = 1 - uniform
    lost = 1 - rest
    exact = tl.where(lost > 0, -tl.log(rest) * (uniform / tl.where(lost > 0, lost, 1.0)), uniform)
    return -tl.log(exact)


@triton.jit
def _draw_kernel(
    logits_ptr: tl.tensor,
    mask_ptr: tl.tensor,
    mask_row_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    position_ptr: tl.tensor,
    edge_ptr: tl.tensor,
    last_ptr: tl.tensor,
    best_ptr: tl.tensor,
    score_ptr: tl.tensor,
    token_ptr: tl.tensor,
    vocabulary: tl.tensor,
    words: tl.tensor,
    FILTERS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The highest score with noise of a segment's tokens, and its token; rows that take the best are left alone."""
    row, segment, segments = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperature_ptr + row)
    best = row_best(best_ptr, row, segments, SEGMENTS)
    if (temperature == 0) | (tl.abs(best) >= float("inf")) | (best != best):
        return
    at = row * segments + segment
    if tl.div_rn(tl.load(best_ptr + at) - best, temperature) < LOST:
        tl.store(score_ptr + at, -float("inf"))
        return
    columns = segment * BLOCK + tl.arange(0, BLOCK)
    logits = masked_logits(logits_ptr, mask_ptr, row, tl.load(mask_row_ptr + row), columns, vocabulary, words)
    scores = tl.div_rn(logits - best, tl.zeros_like(logits) + temperature)
    kept = scores > -float("inf")
    if FILTERS:
        edge, last = tl.load(edge_ptr + row), tl.load(last_ptr + row)
        kept = kept & ((scores > edge) | ((scores == edge) & (columns <= last)))
    noisy = tl.where(kept, scores + _noise(tl.load(seed_ptr + row), tl.load(position_ptr + row), columns), -float("inf"))
    score, place = tl.max(noisy, axis=0, return_indices=True)
    tl.store(score_ptr + at, score)
    tl.store(token_ptr + at, segment * BLOCK + place)


@triton.jit
def _pick_kernel(
    temperature_ptr: tl.tensor,
    best_ptr: tl.tensor,
    best_token_ptr: tl.tensor,
    score_ptr: tl.tensor,
    token_ptr: tl.tensor,
    chosen_ptr: tl.tensor,
    chosen_best_ptr: tl.tensor,
    segments: tl.tensor,
    SEGMENTS: tl.constexpr,
) -> None:
    """Of a row's segments, the token of the best logit or of the highest score; equal ones by the lower segment."""
    row = tl.program_id(0)
    each = tl.arange(0, SEGMENTS)
    at = row * segments + each
    inside = each < segments
    if tl.load(temperature_ptr + row) == 0:
        values, tokens = (
            tl.load(best_ptr + at, mask=inside, other=-float("inf")),
            tl.load(best_token_ptr + at, mask=inside, other=0),
        )
    else:
        values, tokens = tl.load(score_ptr + at, mask=inside, other=-float("inf")), tl.load(token_ptr + at, mask=inside, other=0)
    place = tl.argmax(tl.where(values != values, -float("inf"), values), axis=0)
    tl.store(chosen_ptr + row, tl.sum(tl.where(each == place, tokens, 0), axis=0).to(tl.int64))
    tl.store(chosen_best_ptr + row, row_best(best_ptr, row, segments, SEGMENTS))


def draw_rows(logits: Tensor, options: DrawOptions, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `drawing.draw_rows`. Two to four launches, nothing waits for the device. Raises ValueError for other shapes."""
    rows, vocabulary = logits.shape
    words = -(-vocabulary // 32)
    if logits.dtype != torch.float32 or not logits.is_contiguous() or len(options.temperature) != rows:
        raise ValueError(
            f"Expected contiguous float32 logits [{len(options.temperature)}, V], got {logits.dtype} {(rows, vocabulary)}."
        )
    if mask is not None and (mask.dtype != torch.int32 or mask.shape[1] != words or not mask.is_contiguous()):
        raise ValueError(f"Expected a contiguous int32 mask [M, {words}], got {mask.dtype} {tuple(mask.shape)}.")
    tokens, bests = logits.new_empty(rows, dtype=torch.int64), logits.new_empty(rows)
    if not rows:
        return tokens, bests
    segments = triton.cdiv(vocabulary, SEGMENT)
    # Not one tensor for two: what lies behind another isn't always aligned, and a kernel is compiled for each alignment.
    best, best_ids = logits.new_empty(rows, segments), logits.new_zeros(rows, segments, dtype=torch.int32)
    scores, ids = torch.empty_like(best), torch.zeros_like(best_ids)
    held = options.mask_row if mask is None else mask  # without a mask every mask_row is -1, and nothing is read
    padded = triton.next_power_of_2(segments)
    grid, source = (rows, segments), (logits, held, options.mask_row)
    _best_kernel[grid](*source, best, best_ids, vocabulary, words, BLOCK=SEGMENT, num_warps=4)
    if options.draws:
        edge, last = find_thresholds(logits, options, mask, best) if options.filters else (bests, tokens)
        _draw_kernel[grid](
            *source, options.temperature, options.seed, options.position, edge, last, best, scores, ids, vocabulary, words,
            FILTERS=options.filters, SEGMENTS=padded, BLOCK=SEGMENT, num_warps=4,
        )  # fmt: skip
    _pick_kernel[(rows,)](options.temperature, best, best_ids, scores, ids, tokens, bests, segments, SEGMENTS=padded, num_warps=1)
    return tokens, bests
