"""Log-probabilities of a batch's rows on a GPU: log-sum-exps and the best tokens in one pass over the logits, without a sort.

The form of `reference.top_logits`; `runtime.logprobs` makes reports of it. Rows are cut into segments, whose results are merged.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["top_logits"]

SEGMENT = 4096

USUAL = 32
"""Best tokens up to which one form of the kernels serves all counts: nobody waits for a compiler."""


@triton.jit(do_not_specialize=["count"])
def _segment_kernel(
    logits_ptr: tl.tensor,
    most_ptr: tl.tensor,
    sum_ptr: tl.tensor,
    value_ptr: tl.tensor,
    token_ptr: tl.tensor,
    vocabulary: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """A segment's largest logit, its sum of exponentials below that, and its `count` best; NaN where one is."""
    row, segment = tl.program_id(0), tl.program_id(1)
    columns = segment * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row.to(tl.int64) * vocabulary + columns, mask=columns < vocabulary, other=-float("inf"))
    at = row * tl.num_programs(1) + segment
    most = tl.max(tl.where(logits != logits, float("inf"), logits), axis=0)
    finite = tl.abs(most) < float("inf")
    shift = tl.where(finite, most, 0.0)
    total = tl.sum(tl.exp(tl.where(finite, logits - shift, -float("inf"))), axis=0)
    tl.store(most_ptr + at, most)
    tl.store(sum_ptr + at, total)
    left = tl.where(logits != logits, -float("inf"), logits)
    for number in range(count):
        value, place = tl.max(left, axis=0, return_indices=True)
        tl.store(value_ptr + at * count + number, value)
        tl.store(token_ptr + at * count + number, segment * BLOCK + place)
        left = tl.where(columns == segment * BLOCK + place, -float("inf"), left)


@triton.jit(do_not_specialize=["count"])
def _merge_kernel(
    most_ptr: tl.tensor,
    sum_ptr: tl.tensor,
    value_ptr: tl.tensor,
    token_ptr: tl.tensor,
    total_ptr: tl.tensor,
    top_value_ptr: tl.tensor,
    top_token_ptr: tl.tensor,
    segments: tl.tensor,
    count: tl.tensor,
    SEGMENTS: tl.constexpr,
    CANDIDATES: tl.constexpr,
) -> None:
    """One program a row. Candidates lie by segment and by rank in it, so that of equal ones the lower token comes first."""
    row = tl.program_id(0)
    each = tl.arange(0, SEGMENTS)
    at = row * segments + each
    mosts = tl.load(most_ptr + at, mask=each < segments, other=-float("inf"))
    most = tl.max(mosts, axis=0)
    finite = tl.abs(most) < float("inf")
    shift = tl.where(finite, most, 0.0)
    parts = tl.load(sum_ptr + at, mask=each < segments, other=0.0) * tl.exp(tl.where(finite, mosts - shift, -float("inf")))
    total = tl.where(finite, tl.sum(parts, axis=0), 1.0)
    tl.store(total_ptr + row, most + tl.log(total))
    candidate = tl.arange(0, CANDIDATES)
    inside = candidate < segments * count
    left = tl.load(value_ptr + row * segments * count + candidate, mask=inside, other=-float("inf"))
    tokens = tl.load(token_ptr + row * segments * count + candidate, mask=inside, other=0)
    for number in range(count):
        value, place = tl.max(left, axis=0, return_indices=True)
        tl.store(top_value_ptr + row * count + number, value)
        tl.store(top_token_ptr + row * count + number, tl.sum(tl.where(candidate == place, tokens, 0), axis=0).to(tl.int64))
        left = tl.where(candidate == place, -float("inf"), left)


def top_logits(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """See `reference.top_logits`. Two launches, nothing waits for the device. Raises ValueError for other shapes."""
    rows, vocabulary = logits.shape
    if logits.dtype != torch.float32 or not logits.is_contiguous() or not 0 <= count <= vocabulary:
        raise ValueError(
            f"Expected contiguous float32 logits of at least {count} tokens, got {logits.dtype} {(rows, vocabulary)}."
        )
    totals, values = logits.new_empty(rows), logits.new_empty(rows, count)
    tokens = logits.new_empty(rows, count, dtype=torch.int64)
    if not rows:
        return totals, values, tokens
    segments = triton.cdiv(vocabulary, SEGMENT)
    most, sums = logits.new_empty(rows, segments), logits.new_empty(rows, segments)
    some, ids = (
        logits.new_empty(rows, segments, max(count, 1)),
        logits.new_empty(rows, segments, max(count, 1), dtype=torch.int32),
    )
    padded = triton.next_power_of_2(segments)
    _segment_kernel[(rows, segments)](logits, most, sums, some, ids, vocabulary, count, BLOCK=SEGMENT, num_warps=8)
    _merge_kernel[(rows,)](
        most, sums, some, ids, totals, values, tokens, segments, count, SEGMENTS=padded,
        CANDIDATES=padded * max(USUAL, triton.next_power_of_2(max(count, 1))), num_warps=4,
    )  # fmt: skip
    return totals, values, tokens
