"""The fields that chat and text completions share, in OpenAI's, vLLM's and SGLang's names, and what is refused.

Parsed by `wire`, turned into `SamplingParams` here and into a `Constraint` by `constraints`.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from branchpoint.runtime.messages import Hints
from branchpoint.runtime.sampling import Close, SamplingParams
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.wire import Json

__all__ = [
    "INERT",
    "REFUSED",
    "ConstraintFields",
    "SamplingFields",
    "StreamOptions",
    "bias_of",
    "hints_of",
    "salt_of",
    "sampling_of",
    "stop_ids_of",
    "stops_of",
]

INERT = frozenset({"user", "store", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
"""Fields that describe the caller, or how it files its requests; they never change an answer."""

REFUSED: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logprob_token_ids": ([],),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "spaces_between_special_tokens": (True,),
    "guided_whitespace_pattern": (),
    "guided_decoding_backend": (),
    "structural_tag": (),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "stream_interval": (1,),
    "vllm_xargs": ({},),
    "kv_transfer_params": (),
    "service_tier": ("auto", "default"),
    "logits_processors": ([],),
    "stop_regex": ([], ""),
    "session_params": ({},),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "input_embeds": (),
    "prompt_embeds": (),
    "data_parallel_rank": (),
}
"""Fields of all text routes that aren't served, with the values that ask for nothing."""

MAX_TEMPERATURE = 2.0
MAX_SALT = 128
MAX_IDS = 2**18
MAX_PRIORITY = 1000


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`include_usage`: a last chunk with usage and no choices; `continuous_usage_stats`: usage on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class ConstraintFields(msgspec.Struct, frozen=True, kw_only=True):
    """Every dialect in which clients ask for structured output; at most one may be given."""

    response_format: Json | None = None
    structured_outputs: Json | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: Json | str | bool | None = None
    guided_json: Json | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class SamplingFields(ConstraintFields, frozen=True, kw_only=True):
    """What chat and text completions have in common. None: not given."""

    model: str | None = None
    max_tokens: int | None = None
    close: Close | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    rid: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    prompt_logprobs: int | None = None
    lora_path: str | None = None

    @property
    def own_id(self) -> str | None:
        """The id that the caller gave its request, in either name."""
        return self.request_id if self.request_id is not None else self.rid


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple; an empty string asks for none."""
    if not stop:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def salt_of(cache_salt: str | None) -> str:
    """The namespace of cached prefixes that a request asks for: requests of other salts never share KV. Raises InvalidRequest."""
    if cache_salt is None:
        return ""
    if not 0 < len(cache_salt) <= MAX_SALT or not cache_salt.isprintable():
        raise bad_request(f"cache_salt must have 1 to {MAX_SALT} printable characters.", "cache_salt")
    return cache_salt


def hints_of(priority: int | None) -> Hints:
    """A request's `priority` as vLLM means it: lower ones go first. Raises InvalidRequest."""
    if priority is not None and abs(priority) > MAX_PRIORITY:
        raise bad_request(f"priority must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}], got {str(priority)[:40]}.", "priority")
    return Hints(priority=-(priority or 0))


def bias_of(logit_bias: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """`{"token id": bias}` as pairs. Raises InvalidRequest where a key isn't a token id."""
    _check_count(len(logit_bias or ()), "logit_bias")
    pairs = list[tuple[int, float]]()
    for key, value in (logit_bias or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise bad_request(f"logit_bias must be keyed by token ids, got {key[:40]!r}.", "logit_bias")
        pairs.append((int(key), value))
    return tuple(pairs)


def stop_ids_of(ids: list[int] | None) -> tuple[int, ...]:
    """Token ids that end an output. Raises InvalidRequest for more than any vocabulary has."""
    _check_count(len(ids or ()), "stop_token_ids")
    return tuple(ids or ())


def _check_count(count: int, field: str) -> None:
    if count > MAX_IDS:
        raise bad_request(f"{field} may have {MAX_IDS} entries, got {count}.", field)


def sampling_of(fields: SamplingFields, defaults: Mapping[str, float | int], **extra: int | None) -> SamplingParams:
    """Sampling options of one request: what it gives, else the model's own `defaults`, else neutral.

    `extra` are options whose meaning differs between routes (max_tokens, logprobs, prompt_logprobs). Raises InvalidRequest.
    """
    if fields.stream_options is not None and not fields.stream:
        raise bad_request("stream_options needs stream to be true.", "stream_options")
    if fields.prompt_logprobs is not None and fields.stream:
        raise bad_request("prompt_logprobs can't be streamed; leave out one of them.", "prompt_logprobs")
    if fields.temperature is not None and not 0 <= fields.temperature <= MAX_TEMPERATURE:
        raise bad_request(f"temperature must be in [0, {MAX_TEMPERATURE:g}], got {fields.temperature}.", "temperature")
    options: dict[str, object] = {name: value for name, value in defaults.items() if name in _DEFAULTABLE}
    for name in _PLAIN:
        value = getattr(fields, name)
        if value is not None:
            options[name] = value
    if options.get("top_k") == -1:
        options["top_k"] = 0
    options["stop"] = stops_of(fields.stop)
    options["stop_token_ids"] = stop_ids_of(fields.stop_token_ids)
    options["logit_bias"] = bias_of(fields.logit_bias)
    options["include_stop"] = bool(fields.include_stop_str_in_output or fields.no_stop_trim)
    return SamplingParams(**options, **extra)  # type: ignore[arg-type]  # named by the struct's own fields, checked by it


_DEFAULTABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_PLAIN = (*_DEFAULTABLE, "close", "min_tokens", "n", "seed", "ignore_eos", "skip_special_tokens")
