"""The agent loop: the model calls tools until it answers. A function over a state, not a framework: copy it to change it."""

import json
from collections.abc import Callable, Iterable
from typing import Literal, Unpack

from branchpoint.lang.calls import gen, tool
from branchpoint.lang.options import SamplingOptions
from branchpoint.lang.state import State
from branchpoint.lang.tools import Tool, ToolCall, as_tools

__all__ = ["ause_tools", "use_tools"]

OnError = Literal["raise", "tell"]


def use_tools(
    s: State,
    tools: Iterable[Tool | Callable[..., object]],
    *,
    name: str = "answer",
    tool_choice: str = "auto",
    max_turns: int = 8,
    on_error: OnError = "raise",
    **options: Unpack[SamplingOptions],
) -> str:
    """Let the model call `tools`, at most `max_turns` times, until it says something else; that is the value of `name`.

    `tool_choice` holds for the first turn. What a tool raises is raised, or with `on_error="tell"` told to the model.
    """
    known = as_tools(tools)
    for turn in range(max_turns):
        with s.assistant():
            s += gen(name, tools=known, tool_choice="auto" if turn else tool_choice, **options)
        said = s[name]
        if not isinstance(said, ToolCall):
            return str(said)
        s += tool(_told(said, on_error))
    s.assistant(gen(name, **options))
    return str(s[name])


async def ause_tools(
    s: State,
    tools: Iterable[Tool | Callable[..., object]],
    *,
    name: str = "answer",
    tool_choice: str = "auto",
    max_turns: int = 8,
    on_error: OnError = "raise",
    **options: Unpack[SamplingOptions],
) -> str:
    """As `use_tools`, in an `async def` program, with tools that may be `async` (those of MCP are)."""
    known = as_tools(tools)
    for turn in range(max_turns):
        with s.assistant():
            s += gen(name, tools=known, tool_choice="auto" if turn else tool_choice, **options)
        said = await s.aget(name)
        if not isinstance(said, ToolCall):
            return str(said)
        s += tool(await _atold(said, on_error))
    s.assistant(gen(name, **options))
    return str(await s.aget(name))


def _told(call: ToolCall, on_error: OnError) -> str:
    try:
        return _text(call.run())
    except Exception as error:  # the tool's boundary: its error is the model's to deal with, where the program says so
        if on_error == "raise":
            raise
        return f"Error: {error}"


async def _atold(call: ToolCall, on_error: OnError) -> str:
    try:
        return _text(await call.arun())
    except Exception as error:  # as in `_told`
        if on_error == "raise":
            raise
        return f"Error: {error}"


def _text(result: object) -> str:
    """What a tool came to, as the model reads it."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except TypeError:
        from pydantic import TypeAdapter

        return TypeAdapter(object).dump_json(result, fallback=str).decode()
