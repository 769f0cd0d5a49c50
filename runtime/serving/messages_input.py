"""Anthropic's messages, texts or lists of blocks, as chat messages.

Called by `messages_route`. Results of tools stand in the user's turn there, and in messages of their own here.
"""

from collections.abc import Sequence

import msgspec

from branchpoint.runtime.serving.errors import bad_request, shown
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["chat_messages", "text_of"]

_BLOCK = Rules(refused={"citations": ([],)}, inert=frozenset({"cache_control", "caller"}))


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[Json]


class _Text(msgspec.Struct, frozen=True):
    type: str
    text: str


class _Use(msgspec.Struct, frozen=True):
    type: str
    id: str
    name: str
    input: Json


class _Result(msgspec.Struct, frozen=True):
    type: str
    tool_use_id: str
    content: str | list[Json] = ""
    is_error: bool | None = None


def chat_messages(messages: Sequence[Json]) -> list[Json]:
    """Chat messages. Raises InvalidRequest naming the message or block at fault."""
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    ready = list[Json]()
    for place, value in enumerate(messages):
        where = f"messages[{place}]."
        message = as_request(value, _Message, Rules(), where)
        if message.role not in ("user", "assistant", "system"):
            raise bad_request(f"{where}role must be user or assistant, got {shown(message.role)}.", where + "role")
        if isinstance(message.content, str):
            ready.append({"role": message.role, "content": message.content})
        else:
            ready += _turn(message.role, message.content, where + "content")
    return ready


def text_of(content: str | Sequence[Json], where: str) -> str:
    """The text of a text or of text blocks. Raises InvalidRequest for other blocks."""
    if isinstance(content, str):
        return content
    texts = list[str]()
    for place, block in enumerate(content):
        inside = f"{where}[{place}]."
        if block.get("type") != "text":
            told = f"{inside}type must be text (this model reads no other), got {shown(block.get('type'))}."
            raise bad_request(told, inside + "type")
        texts.append(as_request(block, _Text, _BLOCK, inside).text)
    return "".join(texts)


def _turn(role: str, blocks: Sequence[Json], where: str) -> list[Json]:
    texts, calls, results = list[Json](), list[Json](), list[Json]()
    for place, block in enumerate(blocks):
        inside = f"{where}[{place}]."
        kind = block.get("type")
        if kind == "tool_use" and role == "assistant":
            use = as_request(block, _Use, _BLOCK, inside)
            function = {"name": use.name, "arguments": msgspec.json.encode(use.input).decode()}
            calls.append({"id": use.id, "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            result = as_request(block, _Result, _BLOCK, inside)
            text = text_of(result.content, inside + "content")
            told = f"Error: {text}" if result.is_error else text
            results.append({"role": "tool", "content": told, "tool_call_id": result.tool_use_id})
        elif kind not in ("thinking", "redacted_thinking") or role != "assistant":  # earlier thoughts aren't shown again
            texts.append({"type": "text", "text": text_of([block], inside.removesuffix("."))})
    turn: Json = {"role": role, "content": texts}
    if calls:
        turn["tool_calls"] = calls
    return results + ([turn] if texts or calls or not results else [])
