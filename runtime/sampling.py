"""How tokens are chosen: one frozen object of options that travels from the caller to the sampler.

Ranges that need no model are checked when it is built; `check_against` checks ids against a vocabulary, at the door.
"""

from typing import Literal

import msgspec

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["MAX_CHOICES", "MAX_LOGPROBS", "MAX_STOPS", "Close", "SamplingParams"]

Close = Literal["cut", "steer"]
MAX_CHOICES = 128
MAX_STOPS = 64
MAX_LOGPROBS = 20


def _refused(param: str, expected: str, came: object) -> InvalidRequest:
    return InvalidRequest(f"{param} must be {expected}, got {str(came)[:80]}.", param=param)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one generation. Neutral values switch a transform off.

    Temperature 0 is greedy. `max_tokens=None` goes on until a stop, the end token or the context's end. `logprobs=k` reports
    the chosen token and the k best, from the model's raw distribution (before bias, penalties, temperature and mask).
    `prompt_logprobs` does so for the prompt from token `prompt_logprobs_start` on. `close` says what becomes of a constrained
    output that nears `max_tokens` (or the context's end): it is cut there, or steered to the shortest end that is known.
    Raises InvalidRequest naming the option.
    """

    max_tokens: int | None = None
    close: Close = "cut"
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0

    def __post_init__(self) -> None:
        limit, least = self.max_tokens, self.min_tokens
        if limit is not None and not 0 <= limit < 2**31:
            raise _refused("max_tokens", "at least 0 (0 only prefills) and below 2**31", limit)
        if self.close not in ("cut", "steer"):
            raise _refused("close", '"cut" or "steer"', self.close)
        if not 0 <= least < 2**31:
            raise _refused("min_tokens", "at least 0 and below 2**31", least)
        if limit is not None and least > limit:
            raise _refused("min_tokens", f"at most max_tokens={limit}", least)
        if not 0 <= self.temperature <= 100:
            raise _refused("temperature", "in [0, 100]", self.temperature)
        if not 0 <= self.top_k < 2**31:
            raise _refused("top_k", "at least 0 (0 is off) and below 2**31", self.top_k)
        if not 0 < self.top_p <= 1:
            raise _refused("top_p", "in (0, 1]", self.top_p)
        if not 0 <= self.min_p <= 1:
            raise _refused("min_p", "in [0, 1]", self.min_p)
        self._check_penalties()
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise _refused("seed", "a 64-bit integer", self.seed)
        if len(self.stop) > MAX_STOPS:
            raise _refused("stop", f"at most {MAX_STOPS} strings", len(self.stop))
        if not all(self.stop):
            raise _refused("stop", "made of non-empty strings", self.stop)
        if not 1 <= self.n <= MAX_CHOICES:
            raise _refused("n", f"in [1, {MAX_CHOICES}]", self.n)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and not 0 <= count <= MAX_LOGPROBS:
                raise _refused(name, f"in [0, {MAX_LOGPROBS}]", count)
        if self.prompt_logprobs_start < 0:
            raise _refused("prompt_logprobs_start", "at least 0", self.prompt_logprobs_start)

    def _check_penalties(self) -> None:
        for name, penalty in (("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)):
            if not -2 <= penalty <= 2:
                raise _refused(name, "in [-2, 2]", penalty)
        if not 0 < self.repetition_penalty <= 100:
            raise _refused("repetition_penalty", "in (0, 100]", self.repetition_penalty)
        for _, bias in self.logit_bias:
            if not -100 <= bias <= 100:
                raise _refused("logit_bias", "a number in [-100, 100] for each token id", bias)

    @property
    def truncates(self) -> bool:
        """Whether tokens are left out by how likely the others are."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalises(self) -> bool:
        """Whether logits hang on the tokens before."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check_against(self, vocabulary_size: int) -> None:
        """Raise InvalidRequest where a token id lies outside the model's vocabulary."""
        for token, _ in self.logit_bias:
            if not 0 <= token < vocabulary_size:
                raise _refused("logit_bias", f"keyed by token ids in [0, {vocabulary_size})", token)
        for token in self.stop_token_ids:
            if not 0 <= token < vocabulary_size:
                raise _refused("stop_token_ids", f"in [0, {vocabulary_size})", token)
