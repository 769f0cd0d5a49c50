"""POST /generate: SGLang's native shape, and what the language adds to it (segments, healing, exact sampling, events).

From fields to calls; `generate_view` says how the answers look.
"""

from collections.abc import Mapping

import msgspec

from branchpoint.constrained.spec import Constraint
from branchpoint.runtime.messages import Call, Hints, Segment
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.completion import prompts_of
from branchpoint.runtime.serving.constraints import Asked
from branchpoint.runtime.serving.errors import bad_request, named
from branchpoint.runtime.serving.fields import REFUSED, hints_of, salt_of
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.generate_view import EventsView, GenerateView
from branchpoint.runtime.serving.native_sampling import SCORED, Wanted, wanted_of
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["GENERATE_RULES", "GenerateRequest", "answer_generate"]

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
DEFAULT_MAX_NEW_TOKENS = 128


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /generate. Exactly one of `text`, `input_ids` and `segments`; names of special tokens in `text` are special tokens.

    With a list of prompts, `sampling_params`, `return_logprob`, `logprob_start_len` and `top_logprobs_num` may be lists too.

    Branchpoint's own: `segments` (one prompt of mixed texts and ids), `heal`, `sampling` (the options by their own names,
    instead of `sampling_params`), `constraint` (a tagged constraint), `hints`, `cache_salt`, `events` (stream the runtime's
    own events as JSON lines).
    """

    text: str | list[str] | None = None
    input_ids: list[object] | None = None
    segments: list[Segment] | None = None
    sampling_params: Json | list[Json] | None = None
    sampling: SamplingParams | None = None
    constraint: Constraint | None = None
    hints: Hints = Hints()
    heal: bool = False
    events: bool = False
    return_logprob: bool | list[bool] = False
    logprob_start_len: int | list[int] = -1
    top_logprobs_num: int | list[int] = 0
    return_text_in_logprobs: bool = False
    stream: bool = False
    model: str | None = None
    rid: str | None = None
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    lora_path: str | None = None


async def answer_generate(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a native request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, GenerateRequest, GENERATE_RULES)
    gateway.check_model(fields.model)
    source, prompts, batch = _prompts(fields)
    wanted = _wanted(fields, len(prompts) if batch else None)
    for one in {id(one): one for one in wanted}.values():
        with named(one.params):
            one.sampling.check_against(gateway.loaded.info.vocabulary_size)
    namespace = salt_of(fields.cache_salt if fields.cache_salt is not None else fields.extra_key)
    hints = fields.hints
    if fields.priority is not None:
        hints = msgspec.structs.replace(hints, priority=-hints_of(fields.priority).priority)  # SGLang: higher ones go first
    own = request_id("", fields.rid, headers)
    calls = list[Call]()
    for place, (segments, one) in enumerate(zip(prompts, wanted, strict=True)):
        prompt = await gateway.prepare(segments, heal=fields.heal, param=source, raw=fields.segments is None)
        options = one.sampling
        with named(one.params):
            if fields.sampling is None and fields.segments is None and options.max_tokens is None:
                usual = min(DEFAULT_MAX_NEW_TOKENS, gateway.room(len(prompt.tokens)))
                options = msgspec.structs.replace(options, max_tokens=usual)
            gateway.check_output(len(prompt.tokens), options, source)
        call_id = own if len(prompts) == 1 else f"{own}-{place}"
        calls.append(Call(call_id, tuple(prompt.tokens), options, one.constraint, prompt.heal, namespace, hints))
    if fields.events and (not fields.stream or len(calls) > 1):
        raise bad_request("events needs stream to be true and a single prompt.", "events")
    ready = tuple(calls)
    view = GenerateView(own, ready, batch=batch, stream=fields.stream, text=fields.return_text_in_logprobs)
    return Answer(gateway, own, ready, EventsView() if fields.events else view, {**wanted[0].params, "prompt": source})


def _prompts(fields: GenerateRequest) -> tuple[str, list[list[Segment]], bool]:
    """The field that holds the prompts, the prompts, and whether they came as a list (then the answer is one too)."""
    given = [name for name in ("text", "input_ids", "segments") if getattr(fields, name) is not None]
    if len(given) != 1:
        raise bad_request(f"Exactly one of text, input_ids and segments must be given, got {', '.join(given) or 'none'}.", "text")
    (source,) = given
    if fields.segments is not None:
        return source, [list(fields.segments)], False
    if fields.text is not None:
        return source, [[one] for one in prompts_of(fields.text, source)], isinstance(fields.text, list)
    ids = fields.input_ids or []
    if any(isinstance(one, str) for one in ids):
        raise bad_request("input_ids must hold token ids, got a text.", source)
    return source, [[one] for one in prompts_of(ids, source)], bool(ids) and isinstance(ids[0], list)


def _wanted(fields: GenerateRequest, count: int | None) -> list[Wanted]:
    """What each prompt of a list of `count` is generated with, in order; one for a prompt that is no list."""
    if fields.sampling is not None:
        if fields.sampling_params is not None:
            raise bad_request("Only one of sampling and sampling_params can be given.", "sampling")
        return [Wanted(fields.sampling, Asked(fields.constraint, "constraint"))] * (count or 1)
    given = {name: getattr(fields, name) for name in ("sampling_params", *SCORED)}
    lists = {name: value for name, value in given.items() if isinstance(value, list)}
    for name, value in lists.items():
        if len(value) != count:
            expected = "one for each prompt" if count is not None else "a single one, since there is a single prompt"
            raise bad_request(f"{name} must have {expected}, got {len(value)}.", name)
    if not lists:
        return [wanted_of(given, fields.constraint)] * (count or 1)
    wanted = [
        wanted_of(given | {name: value[place] for name, value in lists.items()}, fields.constraint) for place in range(count or 1)
    ]
    if len({one.sampling.n for one in wanted}) > 1:
        raise bad_request("n must be the same for all prompts of a request.", "sampling_params")
    return wanted
