"""POST /v1/responses: OpenAI's Responses API on top of chat; GET and DELETE of those that were kept.

A response goes on from an earlier one by `previous_response_id`, as long as that is in memory.
"""

from collections.abc import Callable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from branchpoint.runtime.serving.answer import Answer
from branchpoint.runtime.serving.chat import ChatRequest, chat_call
from branchpoint.runtime.serving.constraints import nested_format
from branchpoint.runtime.serving.errors import ApiError, bad_request, named, shown
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.replies import Reply
from branchpoint.runtime.serving.request_ids import request_id
from branchpoint.runtime.serving.response_store import ResponseStore, Stored
from branchpoint.runtime.serving.responses_input import input_messages
from branchpoint.runtime.serving.responses_view import ResponsesView
from branchpoint.runtime.serving.wire import Json, Rules, as_request, json_response

__all__ = ["RESPONSES_RULES", "ResponsesRequest", "answer_responses", "responses_router"]

RESPONSES_RULES = Rules(
    refused={
        "background": (False,),
        "conversation": (),
        "include": ([],),
        "max_tool_calls": (),
        "prompt": (),
        "service_tier": ("auto", "default"),
        "stream_options": ({}, {"include_obfuscation": False}),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
        "context_management": (),
    },
    inert=frozenset({"user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}),
)
_NAMES: dict[str | None, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
}


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of /v1/responses."""

    input: str | list[Json]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: Json | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Json | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    request_id: str | None = None


class _Text(msgspec.Struct, frozen=True):
    format: Json | None = None


class _Reasoning(msgspec.Struct, frozen=True):
    effort: str | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


async def answer_responses(gateway: Gateway, body: Json, request: Request) -> Answer:
    """The answer to a request for a response. Raises InvalidRequest and ApiError before anything runs."""
    fields = as_request(body, ResponsesRequest, RESPONSES_RULES)
    model = gateway.check_model(fields.model)
    owner = caller_of(request.scope).name
    messages = _earlier(gateway, fields, owner) + input_messages(fields.input)
    own = request_id("resp_", fields.request_id, request.headers)
    effort = as_request(fields.reasoning or {}, _Reasoning, _REASONING, "reasoning.").effort
    with named(_NAMES):
        ready = await chat_call(gateway, _chat(fields, messages, effort), own)
    store = fields.store is not False and gateway.settings.max_stored_responses > 0

    def done(response: Json, reply: Reply) -> None:
        if store:
            gateway.shared.responses.put(owner, Stored(response, (*messages, _turn(reply))))

    view = ResponsesView(ready.call, ready.use, _head(fields, model, stored=store), done, stream=bool(fields.stream))
    params = {key: _NAMES.get(name, name) for key, name in ready.params.items()}
    return Answer(gateway, own, (ready.call,), view, params)


_REASONING = Rules(refused={"summary": ("auto",), "generate_summary": ()}, inert=frozenset())


def _earlier(gateway: Gateway, fields: ResponsesRequest, owner: str) -> list[Json]:
    """The conversation so far, below this request's own instructions."""
    earlier = list[Json]()
    if fields.previous_response_id is not None:
        earlier = list(gateway.shared.responses.get(owner, fields.previous_response_id, "previous_response_id").messages)
    return [{"role": "system", "content": fields.instructions}, *earlier] if fields.instructions else earlier


def _chat(fields: ResponsesRequest, messages: list[Json], effort: str | None) -> ChatRequest:
    return ChatRequest(
        messages=messages,
        max_tokens=fields.max_output_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        response_format=_format(fields.text),
        tools=[_tool(tool, place) for place, tool in enumerate(fields.tools)] if fields.tools else None,
        tool_choice=fields.tool_choice,
        parallel_tool_calls=fields.parallel_tool_calls,
        reasoning_effort=effort,
    )


def _format(text: Json | None) -> Json | None:
    given = as_request(text or {}, _Text, Rules(refused={"verbosity": ("medium",)}), "text.").format
    return None if given is None else nested_format(given)


def _tool(value: Json, place: int) -> Json:
    where = f"tools[{place}]."
    if value.get("type") != "function":
        raise bad_request(f"{where}type must be function, got {shown(value.get('type'))}.", where + "type")
    tool = as_request(value, _Tool, Rules(), where)
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {key: one for key, one in function.items() if one is not None}}


def _turn(reply: Reply) -> Json:
    """What the model said, as the conversation goes on from it."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.calls
        if call.complete
    ]
    return {"role": "assistant", "content": reply.content or ""} | ({"tool_calls": calls} if calls else {})


def _head(fields: ResponsesRequest, model: str, *, stored: bool) -> Json:
    return {
        "background": False,
        "error": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "metadata": fields.metadata or {},
        "model": model,
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "reasoning": fields.reasoning or {"effort": None, "summary": None},
        "store": stored,
        "temperature": fields.temperature,
        "text": fields.text or {"format": {"type": "text"}},
        "tool_choice": fields.tool_choice or "auto",
        "tools": fields.tools or [],
        "top_p": fields.top_p,
        "truncation": "disabled",
    }


def responses_router(store: ResponseStore) -> APIRouter:
    """The routes of responses that exist already."""
    router = APIRouter()
    path = "/v1/responses/{response_id}"

    async def get_response(response_id: str, request: Request) -> Response:
        return json_response(store.get(caller_of(request.scope).name, response_id).response)

    async def delete_response(response_id: str, request: Request) -> Response:
        store.drop(caller_of(request.scope).name, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel_response(response_id: str, request: Request) -> Response:
        store.get(caller_of(request.scope).name, response_id)
        raise ApiError(400, "Only responses in the background can be cancelled; this one has ended.")

    handlers: tuple[tuple[str, str, Callable[..., object]], ...] = (
        (path, "GET", get_response),
        (path, "DELETE", delete_response),
        (path + "/cancel", "POST", cancel_response),
    )
    for where, method, handler in handlers:
        router.add_api_route(where, handler, methods=[method], response_model=None)
    return router
