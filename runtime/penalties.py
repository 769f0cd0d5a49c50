"""What a sequence's own options and history do to one row of logits: bias, penalties, no end before min_tokens.

The sampler's first stage, on a copy of the row; the grammar's mask comes after it.
"""

from collections.abc import Sequence as Many

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from branchpoint.kernels.reference import adjust_logits
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["adjust", "changes_logits", "gather_changes", "suppressed_tokens"]


def changes_logits(params: SamplingParams) -> bool:
    """Whether `adjust` does anything for these options."""
    return bool(params.logit_bias) or params.penalises


def gather_changes(
    params: SamplingParams, prompt: Many[int], output: Many[int], suppressed: Many[int] = ()
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The tokens whose logits change, and by what: as `kernels.reference.adjust_logits` takes them for one row.

    `output` are the tokens generated before this row; `suppressed` ones can't be drawn. Repetition (over prompt and output)
    divides positive and multiplies negative logits, as in CTRL (Keskar et al. 2019); frequency and presence (over output) are
    subtracted, as in OpenAI's API.
    """
    biased = np.array([*(token for token, _ in params.logit_bias), *suppressed], np.int64)
    seen = [*prompt, *output] if params.repetition_penalty != 1.0 else []
    counted = output if params.presence_penalty or params.frequency_penalty else []
    places = np.unique(np.concatenate((biased, np.asarray(seen, np.int64), np.asarray(counted, np.int64))))
    bias, amount = (np.zeros(len(places), np.float32) for _ in range(2))
    factor = np.ones(len(places), np.float32)
    values = [*(value for _, value in params.logit_bias), *[-np.inf] * len(suppressed)]
    np.add.at(bias, np.searchsorted(places, biased), np.array(values, np.float32))
    factor[np.searchsorted(places, np.asarray(seen, np.int64))] = params.repetition_penalty
    ids, counts = np.unique(np.asarray(counted, np.int64), return_counts=True)
    amount[np.searchsorted(places, ids)] = counts * params.frequency_penalty + params.presence_penalty
    return places, bias, factor, amount


def adjust(scores: Tensor, params: SamplingParams, prompt: Many[int], output: Many[int]) -> None:
    """Add the bias and apply the penalties to scores [V] in place: what `gather_changes` says."""
    adjust_logits(scores, *(torch.from_numpy(each).to(scores.device) for each in gather_changes(params, prompt, output)))


def suppressed_tokens(params: SamplingParams, num_output: int, eos: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that would end the sequence, where it has fewer than min_tokens tokens; else none."""
    return (*eos, *params.stop_token_ids) if num_output < params.min_tokens else ()
