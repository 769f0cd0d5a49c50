"""POST /v1/completions: OpenAI's text completions, one call for each prompt.

A prompt is a text, token ids, or a list of either; choice index = place of the prompt · n + sample.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from branchpoint.runtime.messages import Call, Delta, Event, Ids, ModelInfo, SampleFinished, Segment, Text
from branchpoint.runtime.sampling import MAX_LOGPROBS, SamplingParams
from branchpoint.runtime.serving.answer import Answer, EventBatch
from branchpoint.runtime.serving.collected import Collected, Sample
from branchpoint.runtime.serving.constraints import constraint_of
from branchpoint.runtime.serving.errors import bad_request, shown
from branchpoint.runtime.serving.fields import INERT, REFUSED, SamplingFields, hints_of, salt_of, sampling_of
from branchpoint.runtime.serving.framing import EVENTS
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.logprobs import completion_logprobs, prompt_logprobs
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["COMPLETION_RULES", "CompletionRequest", "answer_completion", "prompts_of"]

COMPLETION_RULES = Rules(refused={**REFUSED, "suffix": ("",), "add_special_tokens": (True,)}, inert=INERT)
DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 2048


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of /v1/completions. Names of special tokens in a text prompt are special tokens."""

    prompt: str | list[object]
    echo: bool | None = None
    logprobs: int | None = None


def prompts_of(prompt: object, param: str = "prompt") -> list[Segment]:
    """The prompts in a `prompt` field, in order. Raises InvalidRequest for what is none, and for too many."""
    if isinstance(prompt, str):
        return [Text(prompt)]
    if not isinstance(prompt, list) or not prompt:
        raise bad_request(f"{param} must be a text, a list of token ids, or a non-empty list of those.", param)
    if isinstance(prompt[0], int):
        return [_ids(prompt, param)]
    if len(prompt) > MAX_PROMPTS:
        raise bad_request(f"{param} holds {len(prompt)} prompts; at most {MAX_PROMPTS} can be sent at once.", param)
    return [Text(one) if isinstance(one, str) else _ids(one, f"{param}[{place}]") for place, one in enumerate(prompt)]


def _ids(tokens: object, param: str) -> Ids:
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise bad_request(f"{param} must be a text or a list of token ids, got {shown(tokens)}.", param)
    return Ids(tuple(tokens))


async def answer_completion(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a completion request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, CompletionRequest, COMPLETION_RULES)
    name = gateway.check_model(fields.model)
    loaded = gateway.loaded
    _check(fields)
    segments = prompts_of(fields.prompt)
    asked = constraint_of(fields)
    own = request_id("cmpl-", fields.own_id, headers)
    space, hints = salt_of(fields.cache_salt), hints_of(fields.priority)
    calls, echoes, samplings = list[Call](), list[str](), dict[int, SamplingParams]()
    for place, segment in enumerate(segments):
        prompt = (await gateway.prepare([segment], heal=False, param="prompt", raw=True)).tokens
        limit = fields.max_tokens
        if limit is None:
            limit = min(DEFAULT_MAX_TOKENS, gateway.room(len(prompt)))
        if limit not in samplings:
            samplings[limit] = _sampling(fields, loaded.info, limit)
        sampling = samplings[limit]
        gateway.check_output(len(prompt), sampling, "prompt")
        call_id = own if len(segments) == 1 else f"{own}-{place}"
        calls.append(Call(call_id, tuple(prompt), sampling, asked.constraint, namespace=space, hints=hints))
        if fields.echo:
            echoes.append(
                segment.text if isinstance(segment, Text) else loaded.tokenizer.decode(segment.tokens, skip_special=False)
            )
    view = _CompletionView(_Head(own, name), tuple(calls), tuple(echoes), fields)
    return Answer(gateway, own, tuple(calls), view, asked.params)


def _sampling(fields: CompletionRequest, info: ModelInfo, limit: int) -> SamplingParams:
    scored = fields.prompt_logprobs if fields.prompt_logprobs is not None else fields.logprobs if fields.echo else None
    sampling = sampling_of(fields, info.sampling_defaults, max_tokens=limit, logprobs=fields.logprobs, prompt_logprobs=scored)
    sampling.check_against(info.vocabulary_size)
    return sampling


def _check(fields: CompletionRequest) -> None:
    lowest = 0 if fields.echo else 1
    if fields.max_tokens is not None and fields.max_tokens < lowest:
        raise bad_request(f"max_tokens must be at least {lowest}, got {fields.max_tokens}.", "max_tokens")
    if fields.logprobs is not None and not 0 <= fields.logprobs <= MAX_LOGPROBS:
        raise bad_request(f"logprobs must be in [0, {MAX_LOGPROBS}], got {fields.logprobs}.", "logprobs")
    if fields.echo and fields.logprobs is not None and fields.prompt_logprobs is not None:
        raise bad_request("echo with logprobs tells the prompt's logprobs; leave out prompt_logprobs.", "prompt_logprobs")
    if fields.echo and fields.stream and fields.logprobs is not None:
        raise bad_request("echo with logprobs can't be streamed: the prompt's logprobs come last.", "echo")


@dataclass(frozen=True, slots=True)
class _Head:
    request_id: str
    model: str


class _CompletionView:
    """Text completions, whole or in chunks. The last chunk of a choice is empty and has its finish reason."""

    framing = EVENTS

    def __init__(self, head: _Head, calls: tuple[Call, ...], echoes: tuple[str, ...], fields: CompletionRequest) -> None:
        options = fields.stream_options
        self.stream = bool(fields.stream)
        self._head: Json = {
            "id": head.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": head.model,
            "system_fingerprint": None,
        }
        self._collected = Collected(calls)
        self._n = calls[0].sampling.n
        self._echoes = echoes
        self._logprobs = fields.logprobs is not None
        self._prompt_logprobs = fields.prompt_logprobs is not None
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)
        self._offsets = dict[int, int]()

    def chunks(self, batch: EventBatch) -> list[object]:
        """Text as it comes."""
        return [chunk for call, event in batch for chunk in self._chunks(call, event)]

    def _chunks(self, call: int, event: Event) -> list[object]:
        sample = self._collected.add(call, event)
        if not self.stream or sample is None or not isinstance(event, Delta | SampleFinished):
            return []
        index = call * self._n + event.index
        ready = list[object]()
        if not sample.opened:
            sample.opened = True
            self._offsets[index] = 0
            if self._echoes:
                ready.append(self._chunk(index, self._echoes[call]))
                self._offsets[index] = len(self._echoes[call])
        if isinstance(event, SampleFinished):
            ready.append(self._chunk(index, "", sample))
        elif event.text or (self._logprobs and event.logprobs):
            logprobs = completion_logprobs(event.logprobs, self._offsets[index]) if self._logprobs else None
            self._offsets[index] += len(event.text)
            ready.append(self._chunk(index, event.text, logprobs=logprobs))
        return ready

    def tail(self) -> list[object]:
        """The usage, where it is asked for."""
        return [self._head | {"choices": [], "usage": self._collected.usage()}] if self._include_usage else []

    def whole(self) -> object:
        """All completions in one body."""
        choices = [
            self._choice(call, index, sample)
            for call, samples in enumerate(self._collected.samples)
            for index, sample in enumerate(samples)
        ]
        return self._head | {"choices": choices, "usage": self._collected.usage()}

    def _choice(self, call: int, index: int, sample: Sample) -> Json:
        echo = self._echoes[call] if self._echoes else ""
        entries = [*self._collected.prompt_logprobs[call], *sample.logprobs] if self._echoes else sample.logprobs
        choice: Json = {
            "index": call * self._n + index,
            "text": echo + sample.text,
            "logprobs": completion_logprobs(entries) if self._logprobs else None,
            "finish_reason": sample.reason,
            "stop_reason": sample.stop,
            **sample.told(),
        }
        if self._prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(self._collected.prompt_logprobs[call])
        return choice

    def _chunk(self, index: int, text: str, ended: Sample | None = None, logprobs: Json | None = None) -> Json:
        choice: Json = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": ended.reason if ended else None}
        if ended is not None:
            choice |= {"stop_reason": ended.stop, **ended.told()}
        chunk = self._head | {"choices": [choice]}
        if self._continuous_usage:
            chunk["usage"] = self._collected.usage()
        elif self._include_usage:
            chunk["usage"] = None
        return chunk
