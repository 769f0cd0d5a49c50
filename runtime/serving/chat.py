"""POST /v1/chat/completions: OpenAI's chat, from the request's fields to calls and back.

Messages go through the model's own template as segments, so that a user's text never becomes a special token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from branchpoint.runtime.messages import Call
from branchpoint.runtime.sampling import MAX_LOGPROBS
from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.chat_view import ChatLook, ChatView
from branchpoint.runtime.serving.constraints import Asked, constraint_of
from branchpoint.runtime.serving.conversation import Conversation, render_conversation
from branchpoint.runtime.serving.errors import bad_request, named
from branchpoint.runtime.serving.fields import INERT, REFUSED, SamplingFields, hints_of, salt_of, sampling_of
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.tools import ToolFields, ToolUse, tool_use
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["CHAT_RULES", "ChatCall", "ChatRequest", "answer_chat", "chat_call", "effort_options"]

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

CHAT_RULES = Rules(
    refused={
        **REFUSED,
        "functions": (),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "verbosity": ("medium",),
        "stream_reasoning": (True,),
        "chat_template": (),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
        "add_special_tokens": (False,),
        "echo": (False,),
        "input_ids": (),
    },
    inert=INERT,
)


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: list[Json]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Json | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool | None = None
    include_reasoning: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A chat ready to be sent: its call, how its output is to be read, and the request's names for what may be refused."""

    call: Call
    use: ToolUse
    params: Mapping[str | None, str]


async def answer_chat(gateway: Gateway, body: Json, headers: Mapping[str, str]) -> Answer:
    """The answer to a chat request. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, ChatRequest, CHAT_RULES)
    name = gateway.check_model(fields.model)
    own = request_id("chatcmpl-", fields.own_id, headers)
    ready = await chat_call(gateway, fields, own)
    return Answer(gateway, own, (ready.call,), ChatView(ready.call, ready.use, _look(fields, name)), ready.params)


async def chat_call(gateway: Gateway, fields: ChatRequest, own: str) -> ChatCall:
    """The call, of id `own`, that a chat request means. Raises InvalidRequest and CapacityError."""
    loaded = gateway.loaded
    limit = fields.max_completion_tokens if fields.max_completion_tokens is not None else fields.max_tokens
    if limit is not None and limit < 1:
        param = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        raise bad_request(f"{param} must be at least 1, got {limit}.", param)
    limited: dict[str | None, str] = {
        "max_tokens": "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    }
    with named(limited):
        extra = {"max_tokens": limit, "logprobs": _logprobs(fields), "prompt_logprobs": fields.prompt_logprobs}
        sampling = sampling_of(fields, loaded.info.sampling_defaults, **extra)
    sampling.check_against(loaded.info.vocabulary_size)
    asked = constraint_of(fields)
    tools = ToolFields(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
    use = tool_use(tools, constrained=asked.constraint is not None)
    rendered = await render_conversation(gateway, _conversation(fields, use, free=asked.constraint is None, gateway=gateway))
    prompt = rendered.prompt
    with named(limited):
        gateway.check_output(len(prompt.tokens), sampling, "messages")
    if rendered.use.constraint is not None:
        asked = Asked(rendered.use.constraint, use.field)
    space, hints = salt_of(fields.cache_salt), hints_of(fields.priority)
    call = Call(own, tuple(prompt.tokens), sampling, asked.constraint, namespace=space, hints=hints)
    return ChatCall(call, rendered.use, {"prompt": "messages", **asked.params})


def _conversation(fields: ChatRequest, use: ToolUse, *, free: bool, gateway: Gateway) -> Conversation:
    goes_on = bool(fields.continue_final_message)
    add = not goes_on if fields.add_generation_prompt is None else fields.add_generation_prompt
    if goes_on and add:
        raise bad_request("continue_final_message needs add_generation_prompt to be false.", "continue_final_message")
    source = gateway.loaded.tokenizer.chat_template or ""
    options = {**(fields.chat_template_kwargs or {}), **effort_options(fields.reasoning_effort, source)}
    separate = fields.separate_reasoning is not False
    return Conversation(fields.messages, use, options, add, goes_on, separate, free)


def effort_options(effort: str | None, template: str) -> Json:
    """What a template takes for a reasoning effort. Raises InvalidRequest where it takes nothing of the kind."""
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise bad_request(f"reasoning_effort must be one of {', '.join(_EFFORTS)}, got {effort[:40]!r}.", "reasoning_effort")
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort}
    if "enable_thinking" in template:
        return {"enable_thinking": effort != "none"}
    if effort != "none":
        raise bad_request("This model's template knows no reasoning_effort; leave it out, or say none.", "reasoning_effort")
    return {}


def _look(fields: ChatRequest, model: str) -> ChatLook:
    options = fields.stream_options
    return ChatLook(
        model,
        stream=bool(fields.stream),
        logprobs=bool(fields.logprobs),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        show_reasoning=fields.include_reasoning is not False,
        most_calls=1 if fields.parallel_tool_calls is False else None,
    )


def _logprobs(fields: ChatRequest) -> int | None:
    top = fields.top_logprobs
    if top and not fields.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs must be in [0, {MAX_LOGPROBS}], got {top}.", "top_logprobs")
    return (top or 0) if fields.logprobs else None
