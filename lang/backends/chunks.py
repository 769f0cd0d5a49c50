"""The chunks of OpenAI's streams, of chats and of texts, as events. Used by `openai.py` and `litellm.py`.

Token ids aren't told by these APIs: deltas have text only, and logprobs the id -1.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from branchpoint.lang.backends.native_tools import NativeCall
from branchpoint.lang.backends.wrapped import Wrapped
from branchpoint.lang.errors import BackendError
from branchpoint.runtime.messages import Completed, Delta, Event, FinishReason, SampleFinished, TokenLogprob, Usage

__all__ = ["Chunk", "Chunks", "chunk_of", "usage_of"]

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
}
NO_ID = -1


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None
    top_logprobs: "list[_Token] | None" = None


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None
    text_offset: list[int] | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    index: int = 0
    function: _Function | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Message | None = None
    text: str | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str | None = None
    code: str | int | None = None


class Chunk(msgspec.Struct, frozen=True):
    """A chunk of a stream, or a whole answer of text completions; what isn't used here is passed over."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


def chunk_of(data: bytes) -> Chunk:
    """The chunk of one event. Raises BackendError for what is none, and for an error that comes in the stream."""
    try:
        chunk = msgspec.json.decode(data, type=Chunk)
    except msgspec.DecodeError as error:
        raise BackendError(f"The server streamed what is no chunk: {data[:200]!r} ({error}).") from error
    if (told := chunk.error) is not None:
        status = told.code if isinstance(told.code, int) else None
        raise BackendError(f"The server failed while it answered: {told.message}", status=status, body=data[:2000].decode())
    return chunk


def usage_of(told: _Usage | None) -> Usage:
    """The counts, as far as the server tells them."""
    if told is None:
        return Usage()
    prompt, details = told.prompt_tokens or 0, told.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    return Usage(
        prompt_tokens=prompt,
        cached_tokens=cached,
        prefilled_tokens=prompt - cached,
        completion_tokens=told.completion_tokens or 0,
    )


@dataclass(slots=True)
class _Sample:
    texts: list[str] = field(default_factory=list)
    finished: bool = False
    call: NativeCall | None = None


class Chunks:
    """Takes the chunks of one request of `n` samples. Wrapped answers are held back until they are whole."""

    def __init__(self, request_id: str, n: int, wrapped: Wrapped | None) -> None:
        self._id = request_id
        self._samples = [_Sample() for _ in range(n)]
        self._wrapped = wrapped
        self._usage: _Usage | None = None

    def add(self, chunk: Chunk) -> Iterator[Event]:
        """The events of a chunk. Raises BackendError where the answer was refused or filtered."""
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            if not 0 <= choice.index < len(self._samples):
                raise BackendError(f"The server sent a choice {choice.index}; {len(self._samples)} were asked for.")
            yield from self._choice(choice, self._samples[choice.index])

    def _choice(self, choice: _Choice, sample: _Sample) -> Iterator[Event]:
        said = choice.delta or _Message(choice.text)
        if said.refusal:
            raise BackendError(f"The model refused: {said.refusal}", body=said.refusal)
        text = said.content or ""
        _collect(sample, said.tool_calls or ())
        logprobs = tuple(_logprobs(choice.logprobs)) if choice.logprobs is not None else ()
        sample.texts.append(text)
        if self._wrapped is None and (text or logprobs):
            yield Delta(self._id, choice.index, text, (), logprobs)
        if choice.finish_reason is None or sample.finished:
            return
        sample.finished = True
        reason = _REASONS.get(choice.finish_reason)
        if reason is None:
            raise BackendError(
                f"The server ended the answer early: {choice.finish_reason}. So far: {''.join(sample.texts)[:200]!r}"
            )
        if sample.call is not None:
            yield Delta(self._id, choice.index, sample.call.text)
        if self._wrapped is not None:
            whole = "".join(sample.texts)
            yield Delta(self._id, choice.index, self._wrapped.unwrap(whole) if reason == "stop" else whole)
        stop = choice.stop_reason if choice.stop_reason is not None else choice.matched_stop
        yield SampleFinished(self._id, choice.index, reason, stop if isinstance(stop, str) else None)

    def end(self) -> Completed:
        """The last event. Raises BackendError where an answer isn't over."""
        if not all(sample.finished for sample in self._samples):
            raise BackendError("The server's stream ended before the answer did.")
        return Completed(self._id, usage_of(self._usage))


def _collect(sample: _Sample, pieces: Iterable[_ToolCall]) -> None:
    """Take the pieces of a call; only the first is one, as more than one aren't asked for."""
    for piece in pieces:
        if piece.index == 0 and piece.function is not None:
            sample.call = sample.call or NativeCall()
            sample.call.name += piece.function.name or ""
            sample.call.arguments += piece.function.arguments or ""


def _logprobs(told: _Logprobs) -> Iterator[TokenLogprob]:
    for token in told.content or ():
        top = tuple((NO_ID, other.logprob, _bytes(other)) for other in token.top_logprobs or ())
        yield TokenLogprob(NO_ID, token.logprob, _bytes(token), top)
    best = told.top_logprobs or []
    for place, (text, logprob) in enumerate(zip(told.tokens or (), told.token_logprobs or (), strict=False)):
        others = (best[place] if place < len(best) else None) or {}
        yield TokenLogprob(NO_ID, logprob, text.encode(), tuple((NO_ID, value, key.encode()) for key, value in others.items()))


def _bytes(token: _Token) -> bytes:
    return bytes(token.bytes) if token.bytes is not None else token.token.encode()
