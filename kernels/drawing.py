"""Drawing a token for each row of a batch: the options of the rows as tensors, and the plain form of the draw.

`draw.draw_rows` is Triton's form with the same signature; both follow `sample`, which says what may be drawn and with what noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from branchpoint.kernels.sample import first_argmax, gumbel_noise, keep_best

__all__ = ["DrawOptions", "draw_rows"]


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
        token, best = (0, -math.inf) if not len(ids) else _draw(scores[ids], ids, options, row)
        tokens.append(token)
        bests.append(best)
    return torch.tensor(tokens, device=logits.device), torch.tensor(bests, dtype=torch.float32, device=logits.device)


def _draw(scores: Tensor, ids: Tensor, options: DrawOptions, row: int) -> tuple[int, float]:
    """The token among `ids` [N] with these logits [N], and the largest of the logits."""
    place = first_argmax(scores)
    best, temperature = float(scores[place]), float(options.temperature[row])
    if temperature == 0 or not math.isfinite(best):
        return int(ids[place]), best
    scaled = (scores - best).div_(temperature)
    least = float(options.least[row])
    kept = keep_best(scaled, int(options.top_k[row]), float(options.top_p[row]), math.exp(least) if least <= 0 else 0.0)
    ids, scaled = ids[kept], scaled[kept]
    noise = gumbel_noise(options.seed[row : row + 1], options.position[row : row + 1], ids.to(torch.int32))[0]
    return int(ids[first_argmax(noise.add_(scaled))]), best
