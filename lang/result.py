"""What a call gave: its samples, and the `Meta` that `s.meta("x")` shows.

The executor fills these when a call ends; nothing here changes afterwards.
"""

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from branchpoint.constrained.spec import Narrowing
from branchpoint.runtime.messages import FinishReason, TokenLogprob, Usage

__all__ = ["Meta", "OptionMeta", "SampleMeta"]


class SampleMeta(msgspec.Struct, frozen=True):
    """One sample: its text and token ids, why it ended, and what was reported of its tokens.

    `stop` is the string or token id that ended it, None for the model's own end token or a length. `reasoning` is the thinking
    that `separate_reasoning` told apart: `text` doesn't hold it, `tokens` may. `forced` are the stretches of `text`, from one
    character up to another, that a grammar left no choice about.
    """

    text: str
    tokens: tuple[int, ...] = ()
    finish_reason: FinishReason = "stop"
    stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    narrowed: tuple[Narrowing, ...] = ()
    reasoning: str = ""
    forced: tuple[tuple[int, int], ...] = ()


class OptionMeta(msgspec.Struct, frozen=True):
    """One option of a select: its tokens' natural-log probabilities, its score, and its normalised probability.

    `end` and `unconditional` are there where the method asked for them (see `ScoredOption`).
    """

    text: str
    logprobs: tuple[float, ...]
    score: float
    probability: float
    end: float | None = None
    unconditional: tuple[float, ...] | None = None


class Meta(msgspec.Struct, frozen=True):
    """What is known of a call besides its value. The fields of the sample that the state went on from are here directly.

    `choices` and `method` are a select's. `seconds` is the time from the request to its end, `seed` the one that was used;
    `reasoning` the thinking before the answer, where that was told apart.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | int | None
    logprobs: tuple[TokenLogprob, ...]
    narrowed: tuple[Narrowing, ...]
    samples: tuple[SampleMeta, ...]
    usage: Usage
    seconds: float
    seed: int | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    choices: tuple[OptionMeta, ...] = ()
    method: str | None = None
    reasoning: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.usage.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt whose KV was there already."""
        return self.usage.cached_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that came out, over all samples."""
        return self.usage.completion_tokens

    @property
    def forced_tokens(self) -> int:
        """Tokens that the grammar left no choice about."""
        return self.usage.forced_tokens

    @property
    def drafted_tokens(self) -> int:
        """Tokens that were proposed before they were verified."""
        return self.usage.drafted_tokens

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that held."""
        return self.usage.accepted_tokens

    def as_dict(self) -> dict[str, object]:
        """Everything as a dictionary, and what log-probabilities there are by SGLang's names, too."""
        fields = asdict(self)
        counts = asdict(fields.pop("usage"))
        lists = {"samples": [*map(asdict, self.samples)], "choices": [*map(asdict, self.choices)]}
        return fields | counts | lists | self._by_other_names()

    def _by_other_names(self) -> dict[str, object]:
        """A triple (log-probability, token id, text) for each token; of a select's options the log-probabilities alone."""
        if self.choices:
            rows = [option.logprobs for option in self.choices]
            return {
                "input_token_logprobs": [[(logprob, None, None) for logprob in row] for row in rows],
                "normalized_prompt_logprobs": [math.fsum(row) / max(len(row), 1) for row in rows],
            }
        told: dict[str, object] = {}
        for kind, tokens in (("input", self.prompt_logprobs), ("output", self.logprobs)):
            if tokens:
                told |= {f"{kind}_token_logprobs": _triples(tokens), f"{kind}_top_logprobs": _alternatives(tokens)}
        return told


def _triples(tokens: Sequence[TokenLogprob]) -> list[tuple[float | None, int, str]]:
    return [(token.logprob, token.token, token.text.decode("utf-8", "replace")) for token in tokens]


def _alternatives(tokens: Sequence[TokenLogprob]) -> list[list[tuple[float, int, str]]]:
    return [[(logprob, other, text.decode("utf-8", "replace")) for other, logprob, text in token.top] for token in tokens]
