"""Chat messages as they come, and as a model's template takes them: role, text, calls of tools and their results.

Used by chat, and by the routes that speak of the same in other words.
"""

import json
from collections.abc import Sequence

import msgspec

from branchpoint.runtime.serving.errors import bad_request, shown
from branchpoint.runtime.serving.tools import ToolUse
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["template_messages", "with_tools"]

_MESSAGE_RULES = Rules(
    refused={"function_call": (), "audio": ()},
    inert=frozenset({"refusal", "annotations", "id"}),
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Json] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Json] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    function: Json
    id: str | None = None
    type: str = "function"
    index: int | None = None


class _CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str | Json = ""


class _TextPart(msgspec.Struct, frozen=True):
    type: str
    text: str


def template_messages(messages: Sequence[Json], param: str = "messages") -> list[Json]:
    """Messages as a chat template takes them: role and plain text. Raises InvalidRequest naming the message at fault."""
    if not messages:
        raise bad_request(f"{param} must not be empty.", param)
    ready = list[Json]()
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
        made: Json = {"role": _ROLES[message.role], "content": content or ""}
        more = {
            "name": message.name,
            "tool_call_id": message.tool_call_id,
            "reasoning_content": message.reasoning_content or message.reasoning,
            "tool_calls": [_tool_call(one, f"{where}tool_calls[{at}].") for at, one in enumerate(message.tool_calls or ())]
            or None,
        }
        ready.append(made | {key: value for key, value in more.items() if value is not None})
    return ready


def _tool_call(value: Json, where: str) -> Json:
    """A call that the model made earlier. Templates read its arguments as an object."""
    call = as_request(value, _ToolCall, Rules(), where)
    function = as_request(call.function, _CalledFunction, Rules(), where + "function.")
    arguments: object = function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            told = f"{where}function.arguments must be the JSON text of an object, got {shown(function.arguments)}."
            raise bad_request(told, where + "function.arguments") from error
    return {"id": call.id or "", "type": "function", "function": {"name": function.name, "arguments": arguments}}


def with_tools(messages: Sequence[Json], use: ToolUse, *, known: bool) -> list[Json]:
    """Messages for a template that `known` says writes tools itself, or that must be given them as text."""
    if known:
        return list(messages)
    ready = [_as_text(message) for message in messages]
    if not use.shown:
        return ready
    if ready[0]["role"] == "system":
        return [ready[0] | {"content": f"{ready[0]['content']}\n\n{use.text()}"}, *ready[1:]]
    return [{"role": "system", "content": use.text()}, *ready]


def _as_text(message: Json) -> Json:
    """A message without the fields that plain templates don't know: calls and results stand in its text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    plain = {key: value for key, value in message.items() if key not in ("tool_calls", "reasoning_content")}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        texts = [str(message["content"])] if message["content"] else []
        texts += [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
        plain["content"] = "\n".join(texts)
    return plain


def _part(part: Json, where: str) -> str:
    if part.get("type") != "text":
        raise bad_request(f"{where}type must be text (this model reads no other), got {shown(part.get('type'))}.", where + "type")
    return as_request(part, _TextPart, Rules(refused={"cache_control": ()}), where).text
