"""Tools in the APIs' own form: what is offered, and conversations whose calls and answers are fields instead of text.

A call stands in a program's text as `tools.py` writes it, whoever made it; here it is taken apart for a server, and put together
from what a server says. Used by the backends of such APIs.
"""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from branchpoint.lang.backends.base import Message
from branchpoint.lang.tools import CLOSE, OPEN, ToolUse, split_call

__all__ = ["Called", "NativeCall", "Said", "anthropic_messages", "anthropic_tools", "openai_messages", "openai_tools"]


@dataclass(frozen=True, slots=True)
class Called:
    """A call in a conversation. `id` joins it with its answer; `arguments` are JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """A message, with the call at its end or the id of the call that it answers."""

    message: Message
    text: str
    call: Called | None = None
    answers: str | None = None


@dataclass(slots=True)
class NativeCall:
    """A call that comes in pieces."""

    name: str = ""
    arguments: str = ""

    @property
    def text(self) -> str:
        """The call as a program's text has it. Arguments that are no JSON stay as they are: who reads the value is told."""
        try:
            arguments = json.dumps(json.loads(self.arguments or "{}"), ensure_ascii=False)
        except ValueError:
            arguments = self.arguments
        return f'{OPEN}\n{{"name": {json.dumps(self.name)}, "arguments": {arguments}}}\n{CLOSE}'


def _told(messages: Sequence[Message]) -> Iterator[Said]:
    """The messages, calls taken out of the texts that end in one. A call that no tool answers stays text: servers want both."""
    open_call: str | None = None
    for number, (message, after) in enumerate(itertools.zip_longest(messages, messages[1:])):
        text = str(message["content"])
        if message["role"] == "tool":
            yield Said(message, text, answers=open_call)
            continue
        answered = message["role"] == "assistant" and after is not None and after["role"] == "tool"
        said, call = _parsed(text, f"call_{number}") if answered else (text, None)
        open_call = call.id if call is not None else None
        yield Said(message, said, call)


def _parsed(text: str, own_id: str) -> tuple[str, Called | None]:
    if (parts := split_call(text)) is not None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            call = json.loads(parts[1])
            return parts[0].rstrip(), Called(own_id, str(call["name"]), json.dumps(call["arguments"], ensure_ascii=False))
    return text, None


def openai_messages(messages: Sequence[Message]) -> list[Mapping[str, object]]:
    """The messages with `tool_calls` and `tool_call_id`."""
    found: list[Mapping[str, object]] = []
    for said in _told(messages):
        if said.call is not None:
            function = {"name": said.call.name, "arguments": said.call.arguments}
            calls = [{"id": said.call.id, "type": "function", "function": function}]
            found.append({**said.message, "content": said.text or None, "tool_calls": calls})
        else:
            found.append({**said.message, "tool_call_id": said.answers} if said.answers is not None else said.message)
    return found


def openai_tools(use: ToolUse) -> dict[str, object]:
    """The fields of a request that offer tools."""
    offered = [{"name": each.name, "description": each.description, "parameters": each.parameters} for each in use.tools]
    named = use.choice not in ("auto", "required")
    choice: object = {"type": "function", "function": {"name": use.choice}} if named else use.choice
    functions = [{"type": "function", "function": each} for each in offered]
    return {"tools": functions, "tool_choice": choice, "parallel_tool_calls": False}


def anthropic_messages(messages: Sequence[Message], *, offered: bool) -> list[Message]:
    """The messages with blocks `tool_use` and `tool_result`, which are a user's; as text where no tools are `offered`: the API
    takes no such blocks then.
    """
    found: list[Message] = []
    for said in _told(messages):
        if not offered:
            found.append(said.message if said.answers is None else {"role": "user", "content": said.text})
        elif said.call is not None:
            use = {"type": "tool_use", "id": said.call.id, "name": said.call.name, "input": json.loads(said.call.arguments)}
            text = [{"type": "text", "text": said.text}] if said.text else []
            found.append({"role": "assistant", "content": [*text, use]})
        elif said.answers is not None:
            found.append(
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": said.answers, "content": said.text}]}
            )
        else:
            found.append(said.message)
    return found


def anthropic_tools(use: ToolUse) -> dict[str, object]:
    """The fields of a request that offer tools."""
    offered = [{"name": each.name, "description": each.description, "input_schema": each.parameters} for each in use.tools]
    named = use.choice not in ("auto", "required")
    kind = "tool" if named else {"auto": "auto", "required": "any"}[use.choice]
    choice = {"type": kind, "disable_parallel_tool_use": True, **({"name": use.choice} if named else {})}
    return {"tools": offered, "tool_choice": choice}
