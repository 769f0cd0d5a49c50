"""Drawing a token for each row of a batch: the options of the rows as tensors, and the plain form of the draw.

`draw.draw_rows` is Triton's form with the same signature; both follow `sample`, which says what may be drawn and with what noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from branchpoint.kernels.sample import first_argmax, gumbel_noise, keep_best

__all__ = ["COLDEST", "Cut", "DrawOptions", "draw_row", "draw_rows", "kept_scores"]

COLDEST = 1e-30
"""The least temperature above 0 that float32 can divide by; below it, the draw is the same."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What may be drawn of a row, and how evenly: `temperature` 0 takes the best; `top_k` 0, `top_p` 1 and `min_p` 0 keep all."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """How each of R rows is drawn, in tensors [R] on the device of the logits.

    `temperature` float32 (0 takes the best), `top_k` int32 (0: all), `top_p` float64 (1: all), `least` float32, the logarithm of
    min_p (minus infinity: off), `seed` and `position` int64, of the noise. `mask_row` int32 is the row of the mask that
    applies, -1 for none. `draws` and `filters` say whether any row has noise, or a top-k, top-p or min-p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    least: Tensor
    seed: Tensor
    position: Tensor
    mask_row: Tensor
    draws: bool
    filters: bool


def draw_rows(logits: Tensor, options: DrawOptions, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """One token for each row of logits float32 [R, V]: returns tokens int64 [R] and the best allowed logits float32 [R].

    `mask` int32 [M, ceil(V / 32)] holds a bit for each token that is allowed, the lowest bit first. A best logit that isn't
    finite says that its row can't be used (NaN counts as largest, minus infinity comes of a mask that allows nothing); its token
    is meaningless then.
    """
    tokens, bests = [], []
    for row, scores in enumerate(logits):
        mask_row = int(options.mask_row[row])
        ids = torch.arange(len(scores), device=scores.device)
        if mask is not None and mask_row >= 0:
            ids = ids[(mask[mask_row][ids >> 5] >> (ids & 31) & 1).bool()]
        token, best = 0, -math.inf
        if len(ids):
            token, best = draw_row(scores[ids], ids, _cut(options, row), int(options.seed[row]), int(options.position[row]))
        tokens.append(token)
        bests.append(best)
    return torch.tensor(tokens, device=logits.device), torch.tensor(bests, dtype=torch.float32, device=logits.device)


def _cut(options: DrawOptions, row: int) -> Cut:
    least = float(options.least[row])
    top_k, top_p = int(options.top_k[row]), float(options.top_p[row])
    return Cut(float(options.temperature[row]), top_k, top_p, math.exp(least) if least <= 0 else 0.0)


def draw_row(scores: Tensor, tokens: Tensor | None, cut: Cut, seed: int, position: int) -> tuple[int, float]:
    """Draw one of `tokens` (None: 0 to N - 1) with the noise of seed (signed, 64 bits) and position; the largest score too.

    Scores [N] float32, N at least 1, are the tokens' logits. Where the largest isn't finite, the token is meaningless.
    """
    place = int(first_argmax(scores))
    best = float(scores[place])
    if cut.temperature > 0 and math.isfinite(best):
        scores, tokens = kept_scores(scores, tokens, cut)
        device = scores.device
        ids = torch.arange(len(scores), dtype=torch.int32, device=device) if tokens is None else tokens.to(torch.int32)
        key = torch.tensor([seed], device=device), torch.tensor([position], device=device)
        place = int(first_argmax(gumbel_noise(*key, ids)[0].add_(scores)))
    return place if tokens is None else int(tokens[place]), best


def kept_scores(scores: Tensor, tokens: Tensor | None, cut: Cut) -> tuple[Tensor, Tensor | None]:
    """Scores over temperature, the best at 0, and their tokens, without those that top-k, top-p and min-p leave out.

    Scores [N] float32 are those of `tokens` (None: 0 to N - 1), the best of them finite; a draw is from their softmax.
    """
    scores = (scores - scores.max()).div_(max(cut.temperature, COLDEST))
    if cut.top_k <= 0 and cut.top_p >= 1 and cut.min_p <= 0:
        return scores, tokens
    kept = keep_best(scores, cut.top_k, cut.top_p, cut.min_p)
    return scores[kept], kept if tokens is None else tokens[kept]
