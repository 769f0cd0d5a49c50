"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API on top of chat.

Fields become those of chat; `messages_view` says how the answers look. Errors have Anthropic's own body (see `app`).
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.chat import ChatRequest, chat_call
from branchpoint.runtime.serving.constraints import nested_format
from branchpoint.runtime.serving.errors import bad_request, named, shown
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.messages_input import chat_messages, text_of
from branchpoint.runtime.serving.messages_view import MessagesView
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.wire import Json, Rules, as_request, json_response

__all__ = ["MESSAGES_RULES", "CountRequest", "MessagesRequest", "answer_messages", "count_message_tokens"]

MESSAGES_RULES = Rules(
    refused={
        "thinking": ({"type": "disabled"},),
        "container": (),
        "context_management": (),
        "mcp_servers": ([],),
        "speed": ("standard",),
    },
    inert=frozenset(
        {"metadata", "service_tier", "cache_control", "inference_geo", "diagnostics", "user_profile_id", "workspace_id"}
    ),
)
_NAMES: dict[str | None, str] = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/messages/count_tokens."""

    messages: list[Json]
    model: str | None = None
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    output_config: Json | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    """Body of /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None


class _Tool(msgspec.Struct, frozen=True):
    name: str
    input_schema: Json
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class _Output(msgspec.Struct, frozen=True):
    format: Json | None = None


class _Choice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_TOOL = Rules(inert=frozenset({"cache_control", "input_examples", "eager_input_streaming", "defer_loading", "allowed_callers"}))


async def answer_messages(gateway: Gateway, body: Json, request: Request) -> Answer:
    """The answer to a message. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, MessagesRequest, MESSAGES_RULES)
    model = gateway.check_model(fields.model)
    if fields.temperature is not None and not 0 <= fields.temperature <= 1:
        raise bad_request(f"temperature must be in [0, 1], got {fields.temperature}.", "temperature")
    own = request_id("msg_", None, request.headers)
    chat = msgspec.structs.replace(
        _chat(fields),
        max_tokens=fields.max_tokens,
        stop=fields.stop_sequences,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
    )
    with named(_NAMES):
        ready = await chat_call(gateway, chat, own)
    most = 1 if chat.parallel_tool_calls is False else None
    view = MessagesView(ready.call, ready.use, model, stream=bool(fields.stream), most=most)
    return Answer(gateway, own, (ready.call,), view, ready.params)


async def count_message_tokens(gateway: Gateway, body: Json, _request: Request) -> Response:
    """How many tokens the same request to /v1/messages would bring along."""
    fields = as_request(body, CountRequest, MESSAGES_RULES)
    gateway.check_model(fields.model)
    with named(_NAMES):
        ready = await chat_call(gateway, _chat(fields), "count")
    return json_response({"input_tokens": len(ready.call.prompt)})


def _chat(fields: CountRequest) -> ChatRequest:
    """The conversation as a chat request."""
    system: list[Json] = []
    if fields.system:
        system = [{"role": "system", "content": text_of(fields.system, "system")}]
    choice, parallel = _choice(fields.tool_choice)
    tools = [_tool(tool, place) for place, tool in enumerate(fields.tools)] if fields.tools else None
    messages = system + chat_messages(fields.messages)
    form = _format(fields.output_config)
    return ChatRequest(messages=messages, tools=tools, tool_choice=choice, parallel_tool_calls=parallel, response_format=form)


def _format(config: Json | None) -> Json | None:
    given = as_request(config or {}, _Output, Rules(refused={"effort": ("high",)}), "output_config.").format
    if given is None:
        return None
    if given.get("type") != "json_schema":
        where = "output_config.format.type"
        raise bad_request(f"{where} must be json_schema, got {shown(given.get('type'))}.", where)
    return nested_format(given)


def _tool(value: Json, place: int) -> Json:
    where = f"tools[{place}]."
    if value.get("type") not in (None, "custom"):
        raise bad_request(f"{where}type must be custom, got {shown(value.get('type'))}.", where + "type")
    tool = as_request(value, _Tool, _TOOL, where)
    function: Json = {"name": tool.name, "parameters": tool.input_schema}
    return {"type": "function", "function": function | ({"description": tool.description} if tool.description else {})}


def _choice(given: Json | None) -> tuple[str | Json | None, bool | None]:
    """`tool_choice` of chat, and whether calls may be parallel."""
    if given is None:
        return None, None
    choice = as_request(given, _Choice, Rules(), "tool_choice.")
    parallel = None if choice.disable_parallel_tool_use is None else not choice.disable_parallel_tool_use
    if choice.type == "tool" and choice.name:
        return {"type": "function", "function": {"name": choice.name}}, parallel
    if choice.type not in _CHOICES:
        raise bad_request(f"tool_choice.type must be auto, any, tool or none, got {shown(choice.type)}.", "tool_choice.type")
    return _CHOICES[choice.type], parallel
