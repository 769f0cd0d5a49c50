"""The backend for Anthropic's Messages API: `Anthropic`.

Takes messages (`conversation.py`), holds output to JSON schemas (`wrapped.py`), streams. It has neither logprobs nor seeds nor
several samples, and says so before anything is sent.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Unpack

import msgspec

from branchpoint.lang.backends.base import Capabilities, GenerateRequest, ScoreRequest
from branchpoint.lang.backends.connection import Connection, LinkOptions, bearer, find_service
from branchpoint.lang.backends.conversation import ChatApi, Conversation, conversation_of, refuse_options
from branchpoint.lang.backends.native_tools import NativeCall, anthropic_messages, anthropic_tools
from branchpoint.lang.backends.retry import when_safe
from branchpoint.lang.backends.sse import server_events
from branchpoint.lang.backends.wrapped import WRAPPABLE, Wrapped, wrap
from branchpoint.lang.errors import BackendError, NotSupported
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Completed, Delta, Event, FinishReason, SampleFinished, Scored, Usage

__all__ = ["Anthropic"]

_HOME = "https://api.anthropic.com"
_VERSION = "2023-06-01"
_OPTIONS = frozenset({"max_tokens", "temperature", "top_p", "top_k", "stop"})
_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class Anthropic(ChatApi):
    """A Claude model at Anthropic, as a backend. Close it with `shutdown()` or `with`.

    `api_key` and `base_url` come from ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL where they aren't given. The API asks for a limit
    on each answer: `max_tokens` is that of a gen that has none. `prefill`: whether the model goes on from how the program begins
    its answer (newer ones don't). `body` is added to each request. `options`, what is sent again and what is raised are as with
    `OpenAI`.
    """

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        max_tokens: int = 8192,
        prefill: bool = True,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        url, key = find_service("Anthropic", _HOME, api_key, base_url)
        if max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
        self.model = model
        self._max_tokens = max_tokens
        self._prefill = prefill
        self._extra = dict(body or {})
        self._connection = Connection(
            url,
            headers={**bearer(key, "x-api-key", ""), "anthropic-version": _VERSION, **(headers or {})},
            retry=when_safe,
            hint=" Is base_url right (it ends before /v1), and the model's name?",
            **options,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Text, no scores, no logprobs; JSON schemas, choices and patterns."""
        return Capabilities(ids=False, score=False, logprobs=False, tools=True, constraints=WRAPPABLE)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """See `Backend`. Leaving it early closes the connection."""
        refuse_options(request.sampling, _OPTIONS, "Anthropic's API")
        wrapped = wrap(request.constraint) if request.constraint is not None else None
        body = self._body(request, conversation_of(request, prefill=self._prefill), wrapped)
        answer = _Answer(request.id, wrapped)
        async with (
            self._connection.open("POST", "/v1/messages", body) as response,
            aclosing(server_events(response.aiter_bytes())) as stream,
        ):
            async for event in stream:
                if (delta := answer.add(event.data)) is not None:
                    yield delta
        for last in answer.end():
            yield last

    def _body(self, request: GenerateRequest, talk: Conversation, wrapped: Wrapped | None) -> dict[str, object]:
        sampling, system, messages = request.sampling, list[str](), list[dict[str, object]]()
        for message in anthropic_messages(talk.messages, offered=request.tools is not None):
            role, content = message["role"], message["content"]
            if role == "system" and not messages:
                system.append(str(content))
            elif role in ("user", "assistant"):
                messages.append({"role": role, "content": content})
            else:
                raise NotSupported(f"Anthropic's API takes no {role} message here; system comes first, then user and assistant.")
        if not messages:
            raise NotSupported("Anthropic's API needs a user's message; a system message alone is not enough.")
        if talk.prefix != talk.prefix.rstrip():
            raise NotSupported("Anthropic's API lets no answer begin with text that ends in white space; leave the space out.")
        if talk.prefix:
            messages.append({"role": "assistant", "content": talk.prefix})
        limit = self._max_tokens if sampling.max_tokens is None else sampling.max_tokens
        if limit < 1:
            raise NotSupported("Anthropic's API can't generate nothing; max_tokens must be at least 1.")
        body: dict[str, object] = {"model": self.model, "max_tokens": limit, "messages": messages, "stream": True}
        if system:
            body["system"] = "\n\n".join(system)
        if sampling.stop:
            body["stop_sequences"] = sampling.stop
        if request.tools is not None:
            body |= anthropic_tools(request.tools)
        if wrapped is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": wrapped.schema}}
        asked = {"temperature": (sampling.temperature, 1.0), "top_p": (sampling.top_p, 1.0), "top_k": (sampling.top_k, 0)}
        return body | {name: value for name, (value, neutral) in asked.items() if value != neutral} | self._extra

    async def score(self, request: ScoreRequest) -> Scored:
        """Refused: the API tells no probabilities."""
        raise NotSupported("Anthropic's API doesn't score options.")

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


class _Delta(msgspec.Struct, frozen=True):
    text: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    name: str = ""


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    content_block: _Block | None = None
    message: _Message | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


class _Answer:
    """One streamed message; events and blocks that say nothing of its text are passed over."""

    def __init__(self, request_id: str, wrapped: Wrapped | None) -> None:
        self._id = request_id
        self._wrapped = wrapped
        self._texts = list[str]()
        self._counts = dict[str, int]()
        self._ended: _Delta | None = None
        self._calls = list[NativeCall]()

    def add(self, data: bytes) -> Delta | None:
        """Take an event. Raises BackendError for what is none, and for an error that comes in the stream."""
        try:
            event = msgspec.json.decode(data, type=_Event)
        except msgspec.DecodeError as error:
            raise BackendError(f"The server streamed what is no event: {data[:200]!r} ({error}).") from error
        if event.error is not None:
            raise BackendError(f"The server failed while it answered: {event.error.message}", body=data[:2000].decode())
        usage = event.message.usage if event.message is not None else event.usage
        if usage is not None:
            self._counts |= {name: value for name, value in msgspec.structs.asdict(usage).items() if value is not None}
        if event.content_block is not None and event.content_block.type == "tool_use":
            self._calls.append(NativeCall(event.content_block.name))
        if event.delta is None:
            return None
        if self._calls and event.delta.partial_json:
            self._calls[-1].arguments += event.delta.partial_json
        if event.delta.stop_reason is not None:
            self._ended = event.delta
        if event.type != "content_block_delta" or not event.delta.text:
            return None
        self._texts.append(event.delta.text)
        return Delta(self._id, 0, event.delta.text) if self._wrapped is None else None

    def end(self) -> tuple[Event, ...]:
        """The last events. Raises BackendError where the answer isn't over, or was refused."""
        if self._ended is None:
            raise BackendError("The server's stream ended before the answer did.")
        whole, told = "".join(self._texts), self._ended
        reason = _REASONS.get(told.stop_reason or "")
        if reason is None:
            raise BackendError(f"The server ended the answer early: {told.stop_reason}. So far: {whole[:200]!r}", body=whole)
        held = self._wrapped.unwrap(whole) if self._wrapped is not None and reason == "stop" else whole
        counts = self._counts
        cached = counts.get("cache_read_input_tokens", 0)
        prefilled = counts.get("input_tokens", 0) + counts.get("cache_creation_input_tokens", 0)
        made = counts.get("output_tokens", 0)
        usage = Usage(prompt_tokens=cached + prefilled, cached_tokens=cached, prefilled_tokens=prefilled, completion_tokens=made)
        text = (Delta(self._id, 0, held),) if self._wrapped is not None and held else ()
        if self._calls:  # one only, as more aren't asked for
            text = (*text, Delta(self._id, 0, self._calls[0].text))
        finished = SampleFinished(self._id, 0, reason, told.stop_sequence, completion_tokens=made)
        return (*text, finished, Completed(self._id, usage))
