"""The `input` of /v1/responses, a text or a list of items, as chat messages.

Called by `responses`. Calls of tools that stand one after another belong to one turn of the assistant.
"""

from collections.abc import Sequence

import msgspec

from branchpoint.runtime.serving.errors import bad_request, shown
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["input_messages"]


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Json]
    type: str = "message"
    name: str | None = None


class _Call(msgspec.Struct, frozen=True):
    type: str
    call_id: str
    name: str
    arguments: str


class _Output(msgspec.Struct, frozen=True):
    type: str
    call_id: str
    output: str | list[Json]


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str


_OWN = Rules(inert=frozenset({"id", "status", "phase"}))
_PART = Rules(inert=frozenset({"annotations", "logprobs"}))


def input_messages(given: str | Sequence[Json]) -> list[Json]:
    """Chat messages. Raises InvalidRequest naming the item at fault."""
    if isinstance(given, str):
        if not given:
            raise bad_request("input must not be empty.", "input")
        return [{"role": "user", "content": given}]
    messages = list[Json]()
    for place, item in enumerate(given):
        where = f"input[{place}]."
        kind = item.get("type", "message")
        if kind == "message":
            message = as_request(item, _Message, _OWN, where)
            messages.append({"role": message.role, "content": _text(message.content, where + "content"), "name": message.name})
        elif kind == "function_call":
            call = as_request(item, _Call, _OWN, where)
            function = {"name": call.name, "arguments": call.arguments}
            _add_call(messages, {"id": call.call_id, "type": "function", "function": function})
        elif kind == "function_call_output":
            output = as_request(item, _Output, _OWN, where)
            text = _text(output.output, where + "output")
            messages.append({"role": "tool", "content": text, "tool_call_id": output.call_id})
        elif kind != "reasoning":  # what the model thought in earlier turns isn't shown to it again, as OpenAI has it
            raise bad_request(f"{where}type {shown(kind)} is not supported by this server.", where + "type")
    return messages


def _add_call(messages: list[Json], call: Json) -> None:
    last = messages[-1] if messages else {}
    calls = last.get("tool_calls")
    if last.get("role") == "assistant" and isinstance(calls, list):
        calls.append(call)
    elif last.get("role") == "assistant":
        messages[-1] = {**last, "tool_calls": [call]}
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _text(content: str | list[Json], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = list[str]()
    for place, value in enumerate(content):
        inside = f"{where}[{place}]."
        if value.get("type") not in ("input_text", "output_text", "text"):
            told = f"{inside}type must be input_text or output_text (this model reads no other), got {shown(value.get('type'))}."
            raise bad_request(told, inside + "type")
        texts.append(as_request(value, _Part, _PART, inside).text)
    return "".join(texts)
