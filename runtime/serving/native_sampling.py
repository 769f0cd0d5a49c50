"""`sampling_params` of /generate, in SGLang's names, and the log-probabilities that stand beside them, as the runtime's options.

Called by `generate`, once for each different set of options.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from branchpoint.constrained.spec import Constraint, Ebnf, Regex
from branchpoint.runtime.sampling import MAX_LOGPROBS, Close, SamplingParams
from branchpoint.runtime.serving.constraints import FREE, Asked, only_one, schema_of, tag_of
from branchpoint.runtime.serving.errors import bad_request, named
from branchpoint.runtime.serving.fields import bias_of, stop_ids_of, stops_of
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["SAMPLING_RULES", "SCORED", "NativeSampling", "Wanted", "wanted_of"]

SAMPLING_RULES = Rules(refused={"stop_regex": ([], ""), "custom_params": ({},), "spaces_between_special_tokens": (True,)})
SCORED = ("return_logprob", "logprob_start_len", "top_logprobs_num")
"""The fields beside `sampling_params` that are options of one prompt."""


class NativeSampling(msgspec.Struct, frozen=True, kw_only=True):
    """`sampling_params` in SGLang's names."""

    max_new_tokens: int | None = None
    close: Close = "cut"
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    n: int = 1
    sampling_seed: int | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | Json | bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | Json | None = None


_SAME = (
    "close",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "logit_bias",
    "n",
)
_PREFIX = "sampling_params."
_NAMES: Mapping[str | None, str] = {
    **{name: _PREFIX + name for name in _SAME},
    "max_tokens": _PREFIX + "max_new_tokens",
    "min_tokens": _PREFIX + "min_new_tokens",
    "seed": _PREFIX + "sampling_seed",
    "prompt_logprobs_start": "logprob_start_len",
}
"""The runtime's options by the names that a native request has for them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How one prompt is to be continued; `names` are the request's for the options."""

    sampling: SamplingParams
    asked: Asked = FREE
    names: Mapping[str | None, str] = field(default_factory=dict)

    @property
    def constraint(self) -> Constraint | None:
        """What the output is held to."""
        return self.asked.constraint

    @property
    def params(self) -> Mapping[str | None, str]:
        """Names for what a refusal is about."""
        return {**self.names, **self.asked.params}


def wanted_of(given: Mapping[str, object], constraint: Constraint | None) -> Wanted:
    """What `sampling_params` and the fields of SCORED in `given` ask for. Raises InvalidRequest naming the field."""
    native = as_request(cast(Json, given["sampling_params"] or {}), NativeSampling, SAMPLING_RULES, _PREFIX)
    found = [Asked(constraint, "constraint")]
    if native.json_schema is not None:
        found.append(schema_of(native.json_schema, _PREFIX + "json_schema"))
    if native.regex is not None:
        found.append(Asked(Regex(native.regex), _PREFIX + "regex"))
    if native.ebnf is not None:
        found.append(Asked(Ebnf(native.ebnf), _PREFIX + "ebnf"))
    if native.structural_tag is not None:
        found.append(tag_of(native.structural_tag, _PREFIX + "structural_tag"))
    asked = only_one(found)
    scored, start = _scored(given)
    with named(_NAMES):
        sampling = SamplingParams(
            max_tokens=native.max_new_tokens,
            min_tokens=native.min_new_tokens,
            seed=native.sampling_seed,
            include_stop=native.no_stop_trim,
            logprobs=scored,
            prompt_logprobs=scored if start >= 0 else None,
            prompt_logprobs_start=max(start, 0),
            **{name: getattr(native, name) for name in _SAME}
            | {
                "top_k": 0 if native.top_k == -1 else native.top_k,
                "stop": stops_of(native.stop),
                "stop_token_ids": stop_ids_of(native.stop_token_ids),
                "logit_bias": bias_of(native.logit_bias),
            },
        )
    return Wanted(sampling, asked, _NAMES)


def _scored(given: Mapping[str, object]) -> tuple[int | None, int]:
    """How many alternatives each token is reported with (None: no log-probabilities), and from which of the prompt's tokens."""
    wanted, start, top = cast(tuple[bool, int, int], tuple(given[name] for name in SCORED))
    if top and not wanted:
        raise bad_request("top_logprobs_num needs return_logprob to be true.", "top_logprobs_num")
    if not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs_num must be in [0, {MAX_LOGPROBS}], got {top}.", "top_logprobs_num")
    if start < -1:
        raise bad_request(
            f"logprob_start_len must be at least -1 (which scores the output only), got {start}.", "logprob_start_len"
        )
    return (top if wanted else None), start
