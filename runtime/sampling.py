"""How tokens are chosen: one frozen object of options that travels from the caller to the sampler.

Ranges that need no model are checked when it is built; `check_against` checks ids against a vocabulary, at the door.
"""

import math

import msgspec

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["MAX_CHOICES", "MAX_LOGPROBS", "MAX_STOPS", "SamplingParams"]

MAX_CHOICES = 128
MAX_STOPS = 64
MAX_LOGPROBS = 20


def _require(condition: bool, param: str, expected: str, came: object) -> None:
    if not condition:
        raise InvalidRequest(f"{param} must be {expected}, got {str(came)[:80]}.", param=param)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of one generation. Neutral values switch a transform off.

    Temperature 0 is greedy. `max_tokens=None` goes on until a stop, the end token or the context's end. `logprobs=k` reports
    the chosen token and the k best, from the model's raw distribution (before bias, penalties, temperature and mask).
    `prompt_logprobs` does so for the prompt from token `prompt_logprobs_start` on. Raises InvalidRequest naming the option.
    """

    max_tokens: int | None = None
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
        limit = self.max_tokens
        _require(limit is None or 0 <= limit < 2**31, "max_tokens", "at least 0 (0 only prefills) and below 2**31", limit)
        _require(0 <= self.min_tokens < 2**31, "min_tokens", "at least 0 and below 2**31", self.min_tokens)
        _require(limit is None or self.min_tokens <= limit, "min_tokens", f"at most max_tokens={limit}", self.min_tokens)
        _require(math.isfinite(self.temperature) and 0 <= self.temperature <= 100, "temperature", "in [0, 100]", self.temperature)
        _require(0 <= self.top_k < 2**31, "top_k", "at least 0 (0 is off) and below 2**31", self.top_k)
        _require(0 < self.top_p <= 1, "top_p", "in (0, 1]", self.top_p)
        _require(0 <= self.min_p <= 1, "min_p", "in [0, 1]", self.min_p)
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, name, "in [-2, 2]", getattr(self, name))
        _require(0 < self.repetition_penalty <= 100, "repetition_penalty", "in (0, 100]", self.repetition_penalty)
        for _, bias in self.logit_bias:
            _require(-100 <= bias <= 100, "logit_bias", "a number in [-100, 100] for each token id", bias)
        _require(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", "a 64-bit integer", self.seed)
        _require(len(self.stop) <= MAX_STOPS, "stop", f"at most {MAX_STOPS} strings", len(self.stop))
        _require(all(self.stop), "stop", "made of non-empty strings", self.stop)
        _require(1 <= self.n <= MAX_CHOICES, "n", f"in [1, {MAX_CHOICES}]", self.n)
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            _require(count is None or 0 <= count <= MAX_LOGPROBS, name, f"in [0, {MAX_LOGPROBS}]", count)
        _require(self.prompt_logprobs_start >= 0, "prompt_logprobs_start", "at least 0", self.prompt_logprobs_start)

    @property
    def truncates(self) -> bool:
        """Whether tokens are left out by how likely the others are."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    def check_against(self, vocabulary_size: int) -> None:
        """Raise InvalidRequest where a token id lies outside the model's vocabulary."""
        for token, _ in self.logit_bias:
            _require(0 <= token < vocabulary_size, "logit_bias", f"keyed by token ids in [0, {vocabulary_size})", token)
        for token in self.stop_token_ids:
            _require(0 <= token < vocabulary_size, "stop_token_ids", f"in [0, {vocabulary_size})", token)
