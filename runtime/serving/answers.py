"""The shapes of answers, for the OpenAPI document: what clients read of them. The views make the answers themselves.

A field without a default is in every answer. `tests/server/test_openapi.py` holds real answers to these shapes.
"""

from typing import Literal

import msgspec

from branchpoint.constrained.spec import Narrowing
from branchpoint.runtime.serving.wire import Json

__all__ = [
    "ANSWERS",
    "Aborted",
    "Adapters",
    "AnthropicError",
    "Chat",
    "ChatChoice",
    "Completion",
    "Deleted",
    "Embedding",
    "Embeddings",
    "Error",
    "Flushed",
    "InputTokens",
    "Message",
    "Model",
    "Models",
    "OptionScores",
    "Program",
    "Prompt",
    "Ranked",
    "Ranking",
    "Reply",
    "Scores",
    "Status",
    "TextChoice",
    "Tokens",
    "Usage",
]


class Error(msgspec.Struct):
    """OpenAI's error body; `code` is the status, `param` the field at fault."""

    class Told(msgspec.Struct):
        """What went wrong."""

        message: str
        type: str
        param: str | None
        code: int

    error: Told


class AnthropicError(msgspec.Struct):
    """Anthropic's error body."""

    class Reason(msgspec.Struct):
        """What went wrong."""

        type: str
        message: str

    type: Literal["error"]
    error: Reason


class Usage(msgspec.Struct):
    """Tokens that were read and made."""

    class Cached(msgspec.Struct):
        """Of the prompt, what was cached."""

        cached_tokens: int

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached
    completion_tokens: int | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: Json | msgspec.UnsetType = msgspec.UNSET


class _Completed(msgspec.Struct):
    id: str
    created: int
    model: str
    usage: Usage


class ChatChoice(msgspec.Struct):
    """One sample of a chat."""

    index: int
    message: Json
    logprobs: Json | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    narrowed: list[Narrowing] | msgspec.UnsetType = msgspec.UNSET


class Chat(_Completed):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextChoice(msgspec.Struct):
    """One sample of a text."""

    index: int
    text: str
    logprobs: Json | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    narrowed: list[Narrowing] | msgspec.UnsetType = msgspec.UNSET


class Completion(_Completed):
    """A text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class Reply(msgspec.Struct):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[Json]
    usage: Json | None
    narrowed: list[Narrowing] | msgspec.UnsetType = msgspec.UNSET


class Message(msgspec.Struct):
    """Anthropic's message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Json]
    stop_reason: str
    stop_sequence: str | None
    usage: Json
    narrowed: list[Narrowing] | msgspec.UnsetType = msgspec.UNSET


class InputTokens(msgspec.Struct):
    """What a message would bring along."""

    input_tokens: int


class Embedding(msgspec.Struct):
    """A text's vector, as numbers or in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(msgspec.Struct):
    """Vectors in the order of the texts."""

    id: str
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: Usage


class Scores(msgspec.Struct):
    """Likelihoods: `data` of pairs of texts, or `scores` of labels behind each item."""

    id: str
    model: str
    usage: Usage
    object: Literal["list", "scoring"]
    data: list[Json] | msgspec.UnsetType = msgspec.UNSET
    scores: list[list[float]] | msgspec.UnsetType = msgspec.UNSET


class Ranked(msgspec.Struct):
    """A document and how likely the query is behind it."""

    index: int
    relevance_score: float
    document: Json | None = None


class Ranking(msgspec.Struct):
    """Documents, the best first."""

    id: str
    model: str
    usage: Usage
    results: list[Ranked]


class OptionScores(msgspec.Struct):
    """For each option the log-probabilities of its tokens."""

    type: Literal["scored"]
    id: str
    logprobs: list[list[float]]
    usage: Json


class Tokens(msgspec.Struct):
    """The ids of a text."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class Prompt(msgspec.Struct):
    """A text, of ids or of a conversation."""

    prompt: str


class Program(msgspec.Struct):
    """A program's name."""

    program: str


class Model(msgspec.Struct):
    """A name under which a model is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class Models(msgspec.Struct):
    """All names."""

    object: Literal["list"]
    data: list[Model]


class Status(msgspec.Struct):
    """Where the server stands; each of its models, where they are several."""

    status: Literal["loading", "ready", "draining", "dead", "stuck"]
    models: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Aborted(msgspec.Struct):
    """How many requests were ended."""

    aborted: int


class Flushed(msgspec.Struct):
    """The cache is empty."""

    success: bool
    message: str


class Adapters(msgspec.Struct):
    """The adapters of a model after one was loaded or unloaded."""

    success: bool
    error_message: str
    loaded_adapters: list[str]


class Deleted(msgspec.Struct):
    """A response that is no longer kept."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


ANSWERS: tuple[type[msgspec.Struct], ...] = (
    *(Error, AnthropicError, Chat, Completion, Reply, Message, InputTokens, Embeddings, Scores, Ranking, OptionScores),
    *(Tokens, Prompt, Program, Models, Model, Status, Aborted, Flushed, Deleted, Adapters),
)
