"""Copies of sequences that guesses are put behind, for drafters that compute them: what they do to one, the sequence never sees.

A shadow is a `Sequence` like any other to the runner that computes it. Kept by the sources of guesses, one for each sequence.
"""

import msgspec

from branchpoint.runtime.sequence import Sequence

__all__ = ["catch_up", "shadow_of"]

OWN_NOISE = 0x1F83D9ABFB41BD6B


def shadow_of(sequence: Sequence, *, own_noise: bool) -> Sequence:
    """A sequence that draws as `sequence` does, or with noise of its own; no log-probabilities are asked of it."""
    sampling = msgspec.structs.replace(sequence.sampling, logprobs=None, prompt_logprobs=None, prompt_logprobs_start=0)
    seed = sequence.seed ^ OWN_NOISE if own_noise else sequence.seed
    tokens, prompt = list(sequence.tokens), sequence.num_prompt
    shadow = Sequence(sequence.call_id, sequence.index, tokens, prompt, sampling, seed, sequence.namespace)
    shadow.next_row = shadow.num_tokens - 1
    return shadow


def catch_up(shadow: Sequence, sequence: Sequence) -> None:
    """Give `shadow` the tokens of `sequence`, whose first ones it has, in place of the guesses behind them.

    At least the last token is to be computed; KV behind the first guess that didn't come true counts no more, nor does KV behind
    a token that was foreseen and isn't the one that was taken in.
    """
    own, tokens = shadow.tokens, sequence.tokens
    if shadow.mistaken != sequence.mistaken:
        shadow.mistaken, shadow.next_row = sequence.mistaken, min(shadow.next_row, sequence.num_prompt)
    same = min(shadow.next_row, len(own), len(tokens))
    while same < min(len(own), len(tokens)) and own[same] == tokens[same]:
        same += 1
    del own[same:]
    own += tokens[same:]
    shadow.num_computed = min(shadow.num_computed, same, len(own) - 1)
    shadow.next_row = len(own) - 1
