"""The classical verification of guesses that were drawn: x of q stands with probability min(1, p(x) / q(x)), else a token is
drawn from what p has more than q (Leviathan et al. 2023, Chen et al. 2023). It keeps the distribution, not the text.

Used by engines set to `draft_verify="rejection"`, through the two samplers: the draft's tells q, the model's verifies with it.
"""

from dataclasses import replace

import torch
from torch import Tensor

from branchpoint.kernels.drawing import kept_scores
from branchpoint.kernels.sample import gumbel_noise
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.plan import RowResult, TokenMask
from branchpoint.runtime.sampler import Sampler, checked, cut_of, signed

__all__ = ["OddsSampler", "RejectionSampler", "verify_guesses"]

RESIDUAL_STREAM = 0x3C6EF372FE94F82A
"""Changes a seed, so that what is drawn in place of a guess has noise that nothing else at its position has."""
COIN = torch.tensor([-1], dtype=torch.int32)
"""The id of no token: its noise decides whether a guess stands."""


def verify_guesses(target: Tensor, draft: Tensor, guesses: Tensor, coins: Tensor, noise: Tensor) -> Tensor:
    """The tokens int64 [R] that come of `guesses` int64 [R], drawn from `draft`: they follow `target`.

    Target and draft [R, V] are probabilities. `coins` [R] are uniform in [0, 1), `noise` [R, V] is Gumbel's; both are independent
    of the guesses. Any draft is right as long as it is what the guess was drawn from: tokens that it can't guess included.
    """
    at = guesses.unsqueeze(1)
    stands = coins * draft.gather(1, at).squeeze(1) < target.gather(1, at).squeeze(1)
    left = (target - draft).clamp_(min=0)
    left = torch.where(left.sum(1, keepdim=True) > 0, left, target)  # equal but for rounding: nothing is left
    return torch.where(stands, guesses, (left.log() + noise).argmax(1))


class RejectionSampler(Sampler):
    """Verifies guesses whose odds are told by this rule; draws all other rows as `Sampler` does, whatever was guessed there.

    Those are rows at temperature 0, and rows of which a grammar refuses tokens only when it is asked about them.
    """

    def _pick(self, scores: Tensor, tokens: Tensor | None, row: WantedRow) -> int | str:
        if row.odds is None or row.known is None or row.sequence.sampling.temperature == 0:
            return super()._pick(scores, tokens, row)
        best = checked(0, float(scores.max()))
        if isinstance(best, str):
            return best
        target = _odds(scores, tokens, row, len(row.odds))
        draft = torch.from_numpy(row.odds).to(target.device, torch.float64)
        ids = torch.arange(len(target), dtype=torch.int32, device=target.device)
        noise = _noise(row, ids, stream=RESIDUAL_STREAM)
        coin = _noise(row, COIN.to(target.device)).neg().exp().neg().exp()
        guess = torch.tensor([row.known], device=target.device)
        return int(verify_guesses(target.unsqueeze(0), draft.unsqueeze(0), guess, coin, noise.unsqueeze(0)))


class OddsSampler(Sampler):
    """Draws guesses, and tells for each what it was drawn from."""

    def sample(self, logits: Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        """See `Sampler.sample`."""
        results = super().sample(logits, rows, mask)
        for place, (result, row) in enumerate(zip(results, rows, strict=True)):
            if result.token is not None and row.sequence.sampling.temperature > 0:
                scores, tokens = self._allowed(logits[place], row, None if mask is None else mask[place])
                odds = _odds(scores if tokens is None else scores[tokens], tokens, row, len(scores))
                results[place] = replace(result, odds=odds.float().cpu().numpy())
        return results


def _odds(scores: Tensor, tokens: Tensor | None, row: WantedRow, size: int) -> Tensor:
    """What a draw from these scores [N] follows: probabilities, float64 [size]."""
    kept, places = kept_scores(scores, tokens, cut_of(row.sequence.sampling))
    odds = kept.double().softmax(0)
    return odds if places is None else odds.new_zeros(size).index_copy_(0, places, odds)


def _noise(row: WantedRow, ids: Tensor, stream: int = 0) -> Tensor:
    """Gumbel noise of a row's seed and position for these ids int32 [N], float64 [N]."""
    seed = torch.tensor([signed(row.sequence.seed ^ stream)], device=ids.device)
    return gumbel_noise(seed, torch.tensor([row.position + 1], device=ids.device), ids)[0].double()
