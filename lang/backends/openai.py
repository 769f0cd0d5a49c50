"""The backend for servers of OpenAI's API, of chats or of texts: `OpenAI`.

A chat server is sent messages (`conversation.py`), and holds output to JSON (`wrapped.py`) or to what its dialect knows
(`dialects.py`); a text server scores options by echoing them. What can't be had is refused before anything is sent.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Unpack

from branchpoint.lang.backends.base import Capabilities, GenerateRequest, ScoreRequest
from branchpoint.lang.backends.chunks import Chunk, Chunks, chunk_of, usage_of
from branchpoint.lang.backends.connection import Connection, LinkOptions, bearer, find_service
from branchpoint.lang.backends.conversation import ChatApi, conversation_of, refuse_options
from branchpoint.lang.backends.dialects import dialect_of, json_format
from branchpoint.lang.backends.native_tools import openai_messages, openai_tools
from branchpoint.lang.backends.retry import when_safe
from branchpoint.lang.backends.sse import server_events, until
from branchpoint.lang.backends.wrapped import Wrapped, wrap
from branchpoint.lang.chat import RoleText, Turn
from branchpoint.lang.errors import BackendError, NotSupported
from branchpoint.runtime.messages import Event, Scored, Segment, Usage
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["OpenAI"]

_HOME = "https://api.openai.com/v1"
_TEXT_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
_AT_ONCE = 256  # options that are scored in one request


class OpenAI(ChatApi):
    """A model behind OpenAI's API, at OpenAI or at any server that speaks it, as a backend. Close it with `shutdown()` or `with`.

    `chat=False` is for text completions (`is_chat_model` is its other name). `dialect` says what the server knows beyond OpenAI's
    own API: "openai", "vllm", "sglang" or "branchpoint". `strict` is OpenAI's word for holding JSON to its schema exactly.
    `api_key` and `base_url` come from OPENAI_API_KEY and OPENAI_BASE_URL where they aren't given; `body` is added to requests.
    `options` are those of `LinkOptions`; requests answered by 429 or 5xx are sent again, as the server asks. Raises BackendError,
    with status and body, where one fails, and NotSupported for what the API can't do, before anything is sent.
    """

    def __init__(
        self,
        model: str,
        api_key: str | None = None,
        base_url: str | None = None,
        *,
        chat: bool | None = None,
        is_chat_model: bool | None = None,
        dialect: str = "openai",
        strict: bool = True,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
        **options: Unpack[LinkOptions],
    ) -> None:
        url, key = find_service("OpenAI", _HOME, api_key, base_url)
        asked = chat if chat is not None else is_chat_model
        self.model = model
        self.chat = asked if asked is not None else not model.startswith(_TEXT_MODELS)
        self._dialect = dialect_of(dialect)
        self._strict = strict
        self._limit = "max_completion_tokens" if url.startswith(_HOME) and self.chat else "max_tokens"
        self._extra = dict(body or {})
        self._connection = Connection(
            url,
            headers={**bearer(key), **(headers or {})},
            retry=when_safe,
            hint=" Is base_url right (it mostly ends in /v1), and the model's name?",
            **options,
        )

    @property
    def capabilities(self) -> Capabilities:
        """Text, not ids. A chat server can't score options; which constraints there are depends on the dialect."""
        tools = self.chat and self._dialect.tools
        return Capabilities(ids=False, score=not self.chat, tools=tools, constraints=self._dialect.constraints(chat=self.chat))

    async def begin(self, turns: Sequence[Turn], role: str, prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`. Raises NotSupported for text completions, which have no roles."""
        if not self.chat:
            raise NotSupported(f"Text completions have no roles; write {role} messages as text, or use chat=True.")
        return await super().begin(turns, role, prompt)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """See `Backend`. Leaving it early closes the connection."""
        path, body, wrapped = self._asked(request)
        chunks = Chunks(request.id, request.sampling.n, wrapped)
        async with (
            self._connection.open("POST", path, body) as response,
            aclosing(until(b"[DONE]", server_events(response.aiter_bytes()))) as stream,
        ):
            async for event in stream:
                for made in chunks.add(chunk_of(event.data)):
                    yield made
        yield chunks.end()

    def _asked(self, request: GenerateRequest) -> tuple[str, dict[str, object], Wrapped | None]:
        """Path and body of a generation. Raises NotSupported."""
        sampling, dialect = request.sampling, self._dialect
        refuse_options(sampling, dialect.options, f"A server of the dialect {dialect.name!r}")
        if sampling.max_tokens == 0:
            raise NotSupported("OpenAI's API can't generate nothing; max_tokens must be at least 1.")
        body: dict[str, object] = {"model": self.model, **_options(sampling, dialect.options)}
        if sampling.max_tokens is not None:
            body[self._limit] = sampling.max_tokens
        if self.chat:
            path = "/chat/completions"
            talk = conversation_of(request, prefill=dialect.prefill)
            body["messages"] = openai_messages(talk.messages) if dialect.tools else talk.messages
            if request.tools is not None:
                body |= openai_tools(request.tools)
            if talk.prefix:
                body["messages"] = (*talk.messages, {"role": "assistant", "content": talk.prefix})
                body |= {"continue_final_message": True, "add_generation_prompt": False}
            if sampling.logprobs is not None:
                body |= {"logprobs": True, **({"top_logprobs": sampling.logprobs} if sampling.logprobs else {})}
        else:
            path, body["prompt"] = "/completions", _text(request)
            if sampling.logprobs is not None:
                body["logprobs"] = sampling.logprobs
        wrapped = None
        if request.constraint is not None and dialect.native is not None:
            body |= dialect.native(request.constraint)
        elif request.constraint is not None:
            wrapped = wrap(request.constraint)
            body["response_format"] = json_format(wrapped.schema, strict=self._strict)
        return path, {**body, "stream": True, "stream_options": {"include_usage": True}, **self._extra}, wrapped

    async def score(self, request: ScoreRequest) -> Scored:
        """See `Backend`. Each option is echoed behind the prompt; tokens that carry bytes of it count."""
        if self.chat:
            raise NotSupported("A chat server doesn't score options; give chat=False where the server has text completions.")
        if request.with_end or request.unconditional:
            method = "total_with_end" if request.with_end else "unconditional_likelihood_normalized"
            raise NotSupported(f"OpenAI's API doesn't tell what {method} needs; use another choices_method.")
        prompt = _text(request)
        if not prompt:
            raise NotSupported("OpenAI's API gives no probability to a text's first token; put some text before the select.")
        options = request.options
        parts = [options[at : at + _AT_ONCE] for at in range(0, len(options), _AT_ONCE)]
        answers = await asyncio.gather(*(self._echo(prompt, part) for part in parts))
        counted = [usage_of(answer.usage) for answer in answers]
        usage = sum(counted, Usage())
        return Scored(
            request.id, tuple(itertools.chain(*(_rows(prompt, *pair) for pair in zip(parts, answers, strict=True)))), usage
        )

    async def _echo(self, prompt: str, options: Sequence[str]) -> Chunk:
        body: dict[str, object] = {
            "model": self.model,
            "prompt": [prompt + option for option in options],
            "echo": True,
            "logprobs": 1,
            "max_tokens": self._dialect.scores_with,
            "temperature": 0.0,
        }
        return await self._connection.ask("POST", "/completions", Chunk, {**body, **self._extra})

    async def server_info(self) -> dict[str, object]:
        """What the server says of its models."""
        return await self._connection.ask("GET", "/models", dict[str, object])

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()


def _text(request: GenerateRequest | ScoreRequest) -> str:
    return "".join(segment.text for segment in request.segments)


def _options(sampling: SamplingParams, known: frozenset[str]) -> dict[str, object]:
    """The options that don't depend on the route, those left out that ask for nothing."""
    body: dict[str, object] = {"temperature": sampling.temperature}
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    neutral = SamplingParams()
    for name in sorted(known - {"max_tokens", "temperature", "logprobs"}):
        value = getattr(sampling, name)
        if value != getattr(neutral, name):
            body[name] = {str(token): bias for token, bias in value} if name == "logit_bias" else value
    return body


def _rows(prompt: str, options: Sequence[str], answer: Chunk) -> list[tuple[float, ...]]:
    """For each option the log-probabilities of the tokens that reach into it."""
    by_index = {choice.index: choice.logprobs for choice in answer.choices}
    rows = list[tuple[float, ...]]()
    for index, option in enumerate(options):
        told = by_index.get(index)
        if told is None or told.tokens is None or told.token_logprobs is None or told.text_offset is None:
            raise BackendError("The server echoed an option without its logprobs, so it can't be scored there.")
        begin, end = len(prompt), len(prompt) + len(option)
        ends = [*told.text_offset[1:], max(end, told.text_offset[-1] + 1)]
        spans = zip(told.text_offset, ends, told.token_logprobs, strict=False)
        row = [logprob for start, stop, logprob in spans if stop > begin and start < end]
        if not row or None in row:
            raise BackendError("The server gave no logprob to a token of an option, so it can't be scored there.")
        rows.append(tuple(logprob for logprob in row if logprob is not None))
    return rows
