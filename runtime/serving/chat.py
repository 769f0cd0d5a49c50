"""POST /v1/chat/completions: OpenAI's chat, from the request's fields to calls and back.

Messages go through the model's own template as segments, so that a user's text never becomes a special token.
"""

import time
from collections.abc import Mapping

import msgspec

from branchpoint.runtime.messages import Call, Delta, Event, SampleFinished
from branchpoint.runtime.sampling import MAX_LOGPROBS
from branchpoint.runtime.serving.answer import Answer, EventBatch
from branchpoint.runtime.serving.collected import Collected, Sample
from branchpoint.runtime.serving.constraints import constraint_of
from branchpoint.runtime.serving.errors import bad_request, named, shown
from branchpoint.runtime.serving.fields import INERT, REFUSED, SamplingFields, salt_of, sampling_of
from branchpoint.runtime.serving.framing import EVENTS
from branchpoint.runtime.serving.gateway import Gateway, request_id
from branchpoint.runtime.serving.logprobs import chat_logprobs
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["CHAT_RULES", "ChatRequest", "answer_chat", "template_messages"]

CHAT_RULES = Rules(
    refused={
        **REFUSED,
        "tools": (),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": (),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "include_reasoning": (True,),
        "separate_reasoning": (True,),
        "stream_reasoning": (True,),
        "chat_template": (),
        "chat_template_kwargs": ({},),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
        "add_special_tokens": (False,),
        "continue_final_message": (False,),
        "echo": (False,),
        "input_ids": (),
    },
    inert=INERT,
)
_MESSAGE_RULES = Rules(
    refused={"tool_calls": ([],), "function_call": (), "audio": (), "reasoning": ("",), "reasoning_content": ("",)},
    inert=frozenset({"refusal", "annotations"}),
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[Json]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Json] | None = None
    name: str | None = None
    tool_call_id: str | None = None


class _TextPart(msgspec.Struct, frozen=True):
    type: str
    text: str


def template_messages(messages: list[Json], param: str = "messages") -> list[dict[str, object]]:
    """Messages as a chat template takes them: role and plain text. Raises InvalidRequest naming the message at fault."""
    if not messages:
        raise bad_request(f"{param} must not be empty.", param)
    ready = list[dict[str, object]]()
    for place, value in enumerate(messages):
        where = f"{param}[{place}]."
        message = as_request(value, _Message, _MESSAGE_RULES, where)
        if message.role not in _ROLES:
            raise bad_request(f"{where}role must be one of {', '.join(_ROLES)}, got {message.role[:40]!r}.", where + "role")
        if message.content is None and message.role != "assistant":
            raise bad_request(f"{where}content is missing.", where + "content")
        content = message.content
        if isinstance(content, list):
            content = "".join(_part(part, f"{where}content[{number}].") for number, part in enumerate(content))
        made: dict[str, object] = {"role": _ROLES[message.role], "content": content or ""}
        made |= {
            key: value for key, value in (("name", message.name), ("tool_call_id", message.tool_call_id)) if value is not None
        }
        ready.append(made)
    return ready


def _part(part: Json, where: str) -> str:
    if part.get("type") != "text":
        raise bad_request(f"{where}type must be text (this model reads no other), got {shown(part.get('type'))}.", where + "type")
    return as_request(part, _TextPart, Rules(refused={"cache_control": ()}), where).text


async def answer_chat(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a chat request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, ChatRequest, CHAT_RULES)
    name = gateway.check_model(fields.model)
    loaded = gateway.loaded
    messages = template_messages(fields.messages)
    limit = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    if limit is not None and limit < 1:
        param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        raise bad_request(f"{param} must be at least 1, got {limit}.", param)
    limited: dict[str | None, str] = {
        "max_tokens": "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    }
    with named(limited):
        sampling = sampling_of(fields, loaded.info.sampling_defaults, max_tokens=limit, logprobs=_logprobs(fields))
    sampling.check_against(loaded.info.vocabulary_size)
    asked = constraint_of(fields)
    add = fields.add_generation_prompt is not False
    segments = await gateway.aside(lambda: loaded.tokenizer.render_segments(messages, add_generation_prompt=add))
    prompt = await gateway.prepare(segments, heal=False, param="messages")
    with named(limited):
        gateway.check_output(len(prompt.tokens), sampling, "messages")
    own = request_id("chatcmpl-", fields.own_id, headers)
    call = Call(own, tuple(prompt.tokens), sampling, asked.constraint, namespace=salt_of(fields.cache_salt))
    return Answer(gateway, own, (call,), _ChatView(call, name, fields), {"prompt": "messages", **asked.params})


def _logprobs(fields: ChatRequest) -> int | None:
    top = fields.top_logprobs
    if top and not fields.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs must be in [0, {MAX_LOGPROBS}], got {top}.", "top_logprobs")
    return (top or 0) if fields.logprobs else None


class _ChatView:
    """A chat completion, whole or in chunks. Per choice: a role chunk, content chunks, one empty chunk with the finish reason."""

    framing = EVENTS

    def __init__(self, call: Call, model: str, fields: ChatRequest) -> None:
        options = fields.stream_options
        self.stream = bool(fields.stream)
        self._head: Json = {"id": call.id, "created": int(time.time()), "model": model, "system_fingerprint": None}
        self._collected = Collected((call,))
        self._logprobs = bool(fields.logprobs)
        self._include_usage = bool(options and options.include_usage)
        self._continuous_usage = bool(options and options.continuous_usage_stats)

    def chunks(self, batch: EventBatch) -> list[object]:
        """Content as it comes; see the class."""
        return [chunk for call, event in batch for chunk in self._chunks(call, event)]

    def _chunks(self, call: int, event: Event) -> list[object]:
        sample = self._collected.add(call, event)
        if not self.stream or sample is None or not isinstance(event, Delta | SampleFinished):
            return []
        ready = list[object]()
        if not sample.opened:
            sample.opened = True
            ready.append(self._chunk(event.index, {"role": "assistant", "content": ""}))
        if isinstance(event, SampleFinished):
            ready.append(self._chunk(event.index, {}, sample))
        elif event.text or (self._logprobs and event.logprobs):
            logprobs = chat_logprobs(event.logprobs) if self._logprobs else None
            ready.append(self._chunk(event.index, {"content": event.text}, logprobs=logprobs))
        return ready

    def tail(self) -> list[object]:
        """The usage, where it is asked for."""
        if not self._include_usage:
            return []
        return [self._head | {"object": "chat.completion.chunk", "choices": [], "usage": self._collected.usage()}]

    def whole(self) -> object:
        """The completion in one body."""
        choices = [self._choice(index, sample) for index, sample in enumerate(self._collected.samples[0])]
        return self._head | {"object": "chat.completion", "choices": choices, "usage": self._collected.usage()}

    def _choice(self, index: int, sample: Sample) -> Json:
        message = {"role": "assistant", "content": sample.text, "refusal": None}
        logprobs = chat_logprobs(sample.logprobs) if self._logprobs else None
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": sample.reason,
            "stop_reason": sample.stop,
        }

    def _chunk(self, index: int, delta: Json, ended: Sample | None = None, logprobs: Json | None = None) -> Json:
        choice: Json = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": ended.reason if ended else None}
        if ended is not None:
            choice["stop_reason"] = ended.stop
        chunk = self._head | {"object": "chat.completion.chunk", "choices": [choice]}
        if self._continuous_usage:
            chunk["usage"] = self._collected.usage()
        elif self._include_usage:
            chunk["usage"] = None
        return chunk
