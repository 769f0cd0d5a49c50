"""POST /generate: SGLang's native shape, and what the language adds to it (segments, healing, exact sampling, events).

From fields to calls; `generate_view` says how the answers look.
"""

from collections.abc import Mapping

import msgspec

from branchpoint.constrained.spec import Constraint, Ebnf, JsonSchema, Regex
from branchpoint.runtime.messages import Call, Hints, Segment
from branchpoint.runtime.sampling import MAX_LOGPROBS, SamplingParams
from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.completion import prompts_of
from branchpoint.runtime.serving.constraints import only_one
from branchpoint.runtime.serving.errors import bad_request
from branchpoint.runtime.serving.fields import REFUSED, bias_of, salt_of, stops_of
from branchpoint.runtime.serving.gateway import Gateway, request_id
from branchpoint.runtime.serving.generate_view import EventsView, GenerateView
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["GENERATE_RULES", "SAMPLING_RULES", "GenerateRequest", "NativeSampling", "answer_generate"]

GENERATE_RULES = Rules(
    refused={
        **REFUSED,
        "token_ids_logprob": ([],),
        "image_data": ([],),
        "audio_data": ([],),
        "video_data": ([],),
        "modalities": ([],),
        "routed_dp_rank": (),
        "log_metrics": (True,),
        "background": (False,),
        "bootstrap_host": (),
        "bootstrap_port": (),
        "bootstrap_room": (),
    },
)
SAMPLING_RULES = Rules(
    refused={"stop_regex": ([], ""), "structural_tag": (), "custom_params": ({},), "spaces_between_special_tokens": (True,)}
)
DEFAULT_MAX_NEW_TOKENS = 128


class NativeSampling(msgspec.Struct, frozen=True, kw_only=True):
    """`sampling_params` in SGLang's names."""

    max_new_tokens: int | None = None
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


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /generate. Exactly one of `text`, `input_ids` and `segments`.

    Branchpoint's own: `segments` (one prompt of mixed texts and ids), `heal`, `sampling` (the options by their own names,
    instead of `sampling_params`), `constraint` (a tagged constraint), `hints`, `cache_salt`, `events` (stream the runtime's
    own events as JSON lines).
    """

    text: str | list[str] | None = None
    input_ids: list[object] | None = None
    segments: list[Segment] | None = None
    sampling_params: Json | None = None
    sampling: SamplingParams | None = None
    constraint: Constraint | None = None
    hints: Hints = Hints()
    heal: bool = False
    events: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    stream: bool = False
    rid: str | None = None
    extra_key: str | None = None
    cache_salt: str | None = None


async def answer_generate(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a native request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, GenerateRequest, GENERATE_RULES)
    prompts, batch = _prompts(fields)
    sampling, constraint = _sampling(fields)
    sampling.check_against(gateway.loaded.info.vocabulary_size)
    namespace = salt_of(fields.cache_salt if fields.cache_salt is not None else fields.extra_key)
    own = request_id("", fields.rid, headers)
    calls = list[Call]()
    for place, segments in enumerate(prompts):
        prompt = await gateway.prepare(segments, heal=fields.heal, param="prompt")
        options = sampling
        if fields.sampling is None and fields.segments is None and sampling.max_tokens is None:
            options = msgspec.structs.replace(sampling, max_tokens=min(DEFAULT_MAX_NEW_TOKENS, gateway.room(len(prompt.tokens))))
        gateway.check_length(len(prompt.tokens), "prompt", max_tokens=1 if options.max_tokens is None else options.max_tokens)
        call_id = own if len(prompts) == 1 else f"{own}-{place}"
        calls.append(Call(call_id, tuple(prompt.tokens), options, constraint, prompt.heal, namespace, fields.hints))
    ready = tuple(calls)
    if fields.events:
        if not fields.stream or len(calls) > 1:
            raise bad_request("events needs stream to be true and a single prompt.", "events")
        return Answer(gateway, own, ready, EventsView())
    return Answer(
        gateway, own, ready, GenerateView(own, ready, batch=batch, stream=fields.stream, text=fields.return_text_in_logprobs)
    )


def _prompts(fields: GenerateRequest) -> tuple[list[list[Segment]], bool]:
    """The prompts, and whether they came as a list (then the answer is one too)."""
    given = [name for name in ("text", "input_ids", "segments") if getattr(fields, name) is not None]
    if len(given) != 1:
        raise bad_request(f"Exactly one of text, input_ids and segments must be given, got {', '.join(given) or 'none'}.", "text")
    if fields.segments is not None:
        return [list(fields.segments)], False
    if fields.text is not None:
        return [[one] for one in prompts_of(fields.text, "text")], isinstance(fields.text, list)
    ids = fields.input_ids or []
    if any(isinstance(one, str) for one in ids):
        raise bad_request("input_ids must hold token ids, got a text.", "input_ids")
    return [[one] for one in prompts_of(ids, "input_ids")], bool(ids) and isinstance(ids[0], list)


def _sampling(fields: GenerateRequest) -> tuple[SamplingParams, Constraint | None]:
    found = dict[str, Constraint]()
    if fields.constraint is not None:
        found["constraint"] = fields.constraint
    if fields.sampling is not None:
        if fields.sampling_params is not None:
            raise bad_request("Only one of sampling and sampling_params can be given.", "sampling")
        return fields.sampling, only_one(found)
    native = as_request(fields.sampling_params or {}, NativeSampling, SAMPLING_RULES, "sampling_params.")
    if native.json_schema is not None:
        schema = native.json_schema
        found["json_schema"] = JsonSchema(schema if isinstance(schema, str) else msgspec.json.encode(schema).decode())
    if native.regex is not None:
        found["regex"] = Regex(native.regex)
    if native.ebnf is not None:
        found["ebnf"] = Ebnf(native.ebnf)
    if fields.top_logprobs_num and not fields.return_logprob:
        raise bad_request("top_logprobs_num needs return_logprob to be true.", "top_logprobs_num")
    if not 0 <= fields.top_logprobs_num <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs_num must be in [0, {MAX_LOGPROBS}], got {fields.top_logprobs_num}.", "top_logprobs_num")
    start = fields.logprob_start_len
    scored = fields.top_logprobs_num if fields.return_logprob else None
    return SamplingParams(
        max_tokens=native.max_new_tokens,
        min_tokens=native.min_new_tokens,
        top_k=0 if native.top_k == -1 else native.top_k,
        seed=native.sampling_seed,
        stop=stops_of(native.stop),
        stop_token_ids=tuple(native.stop_token_ids),
        include_stop=native.no_stop_trim,
        logit_bias=bias_of(native.logit_bias),
        logprobs=scored,
        prompt_logprobs=scored if start >= 0 else None,
        prompt_logprobs_start=max(start, 0),
        **{name: getattr(native, name) for name in _SAME},
    ), only_one(found)


_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
    "skip_special_tokens",
    "n",
)
