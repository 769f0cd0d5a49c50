"""What a sequence's own options and history do to one row of logits: bias, penalties, no end before min_tokens.

The sampler's first stage, on a copy of the row; the grammar's mask comes after it.
"""

from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from branchpoint.runtime.sampling import SamplingParams

__all__ = ["adjust", "changes_logits", "suppressed_tokens"]


def changes_logits(params: SamplingParams) -> bool:
    """Whether `adjust` does anything for these options."""
    return bool(params.logit_bias) or _penalises(params)


def adjust(scores: Tensor, params: SamplingParams, prompt: Many[int], output: Many[int]) -> None:
    """Add the bias and apply the penalties to scores [V] in place; `output` are the tokens generated before this row.

    Repetition (over prompt and output) divides positive and multiplies negative scores, as in CTRL (Keskar et al. 2019);
    frequency and presence (over output) are subtracted, as in OpenAI's API.
    """
    if params.logit_bias:
        tokens, biases = zip(*params.logit_bias, strict=True)
        scores.index_add_(0, _on(scores, tokens), torch.tensor(biases, dtype=scores.dtype, device=scores.device))
    if params.repetition_penalty != 1.0:
        seen = _on(scores, np.unique(np.asarray([*prompt, *output], dtype=np.int64)))
        old = scores[seen]
        scores[seen] = torch.where(old > 0, old / params.repetition_penalty, old * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and output:
        ids, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        amounts = counts * params.frequency_penalty + params.presence_penalty
        scores.index_add_(0, _on(scores, ids), torch.tensor(-amounts, dtype=scores.dtype, device=scores.device))


def suppressed_tokens(params: SamplingParams, num_output: int, eos: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that would end the sequence, where it has fewer than min_tokens tokens; else none."""
    return (*eos, *params.stop_token_ids) if num_output < params.min_tokens else ()


def _penalises(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _on(scores: Tensor, ids: Many[int] | npt.NDArray[np.int64]) -> Tensor:
    return torch.as_tensor(ids, dtype=torch.int64, device=scores.device)
