"""The backend for whatever the `litellm` package reaches: `LiteLLM`. An optional extra: `pip install branchpoint[litellm]`.

Requests and answers have OpenAI's form there (`chunks.py`); the package knows the providers' own, and refuses what one can't do.
"""

from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from typing import Protocol, cast

import msgspec

from branchpoint.lang.backends.base import Capabilities, GenerateRequest, ScoreRequest
from branchpoint.lang.backends.chunks import Chunk, Chunks
from branchpoint.lang.backends.conversation import ChatApi, conversation_of, refuse_options
from branchpoint.lang.backends.dialects import dialect_of, json_format
from branchpoint.lang.backends.native_tools import openai_messages, openai_tools
from branchpoint.lang.backends.wrapped import WRAPPABLE, wrap
from branchpoint.lang.errors import BackendError, NotSupported
from branchpoint.runtime.messages import Event, Scored

__all__ = ["LiteLLM"]


class _Chunk(Protocol):
    def model_dump(self) -> dict[str, object]: ...


class _Stream(Protocol):
    def __aiter__(self) -> AsyncIterator[_Chunk]: ...


class _Package(Protocol):
    """What is used of the package."""

    async def acompletion(self, **asked: object) -> _Stream: ...

    def supports_response_schema(self, model: str) -> bool: ...


class LiteLLM(ChatApi):
    """A model by LiteLLM's name for it ("provider/model"), as a backend.

    `options` go to `litellm.acompletion` with each request: api_key, api_base, … `schemas`: whether the model holds output to
    JSON schemas (None: what the package knows of it). `retries` are the package's own. Raises NotSupported where the package
    isn't installed, BackendError, with the status, where a request fails.
    """

    def __init__(
        self, model: str, *, schemas: bool | None = None, strict: bool = True, retries: int = 3, **options: object
    ) -> None:
        try:
            self._package = cast(_Package, import_module("litellm"))
        except ImportError as error:
            raise NotSupported("LiteLLM needs the package litellm: pip install 'branchpoint[litellm]'.") from error
        self.model = model
        self._schemas = schemas if schemas is not None else bool(self._package.supports_response_schema(model))
        self._strict = strict
        self._known = dialect_of("openai").options
        self._options: Mapping[str, object] = {"num_retries": retries, **options}

    @property
    def capabilities(self) -> Capabilities:
        """Text, no scores; JSON schemas, choices and patterns where the model holds output to schemas."""
        return Capabilities(ids=False, score=False, tools=True, constraints=WRAPPABLE if self._schemas else frozenset())

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """See `Backend`."""
        asked, sampling = self._asked(request), request.sampling
        wrapped = wrap(request.constraint) if request.constraint is not None else None
        if wrapped is not None:
            asked["response_format"] = json_format(wrapped.schema, strict=self._strict)
        chunks = Chunks(request.id, sampling.n, wrapped)
        try:
            async for piece in await self._package.acompletion(**asked):
                for event in chunks.add(msgspec.convert(piece.model_dump(), Chunk)):
                    yield event
        except BackendError:
            raise
        except Exception as error:  # the boundary to a package that raises its providers' own exceptions
            status = getattr(error, "status_code", None)
            told = str(error)
            raise BackendError(f"LiteLLM: {told[:500]}", status=status if isinstance(status, int) else None, body=told) from error
        yield chunks.end()

    def _asked(self, request: GenerateRequest) -> dict[str, object]:
        """What the package is asked, but for the form of the output. Raises NotSupported."""
        sampling = request.sampling
        refuse_options(sampling, self._known, "LiteLLM")
        if sampling.max_tokens == 0:
            raise NotSupported("LiteLLM can't generate nothing; max_tokens must be at least 1.")
        talk = conversation_of(request, prefill=False)
        asked: dict[str, object] = {"model": self.model, "messages": openai_messages(talk.messages)}
        if request.tools is not None:
            asked |= openai_tools(request.tools)
        given: dict[str, tuple[object, object]] = {
            "max_tokens": (sampling.max_tokens, None),
            "temperature": (sampling.temperature, 1.0),
            "top_p": (sampling.top_p, 1.0),
            "presence_penalty": (sampling.presence_penalty, 0.0),
            "frequency_penalty": (sampling.frequency_penalty, 0.0),
            "stop": (list(sampling.stop), []),
            "n": (sampling.n, 1),
            "logit_bias": ({str(token): bias for token, bias in sampling.logit_bias}, {}),
        }
        asked |= {name: value for name, (value, neutral) in given.items() if value != neutral}
        if sampling.logprobs is not None:
            asked |= {"logprobs": True, "top_logprobs": sampling.logprobs}
        return {**asked, "stream": True, "stream_options": {"include_usage": True}, **self._options}

    async def score(self, request: ScoreRequest) -> Scored:
        """Refused: chat APIs tell no probabilities of given text."""
        raise NotSupported("LiteLLM's models don't score options.")
