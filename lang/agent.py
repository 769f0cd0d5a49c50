"""The agent loop: the model calls tools until it answers. A function over a state, not a framework: copy it to change it."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Unpack

from branchpoint.lang.calls import gen, tool
from branchpoint.lang.errors import ProgramMistake
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
    for turn in _turns(s, name, tools, tool_choice, max_turns, on_error, options):
        if isinstance(said := s[name], ToolCall):
            with turn.errors_told():
                turn.told = _text(said.run())
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
    for turn in _turns(s, name, tools, tool_choice, max_turns, on_error, options):
        if isinstance(said := await s.aget(name), ToolCall):
            with turn.errors_told():
                turn.told = _text(await said.arun())
    return str(await s.aget(name))


@dataclass(slots=True)
class _Turn:
    """A turn of the model's. `told` is what it is told of its call; None where it called nothing."""

    on_error: OnError
    told: str | None = None

    @contextmanager
    def errors_told(self) -> Iterator[None]:
        """Around the run of a tool: where the program says so, what it raises is told to the model."""
        try:
            yield
        except Exception as error:  # the tool's boundary: its error is the model's to deal with, where the program says so
            if self.on_error == "raise":
                raise
            self.told = f"Error: {error}"


def _turns(
    s: State,
    name: str,
    tools: Iterable[Tool | Callable[..., object]],
    tool_choice: str,
    max_turns: int,
    on_error: OnError,
    options: SamplingOptions,
) -> Iterator[_Turn]:
    """The loop. Each turn is asked for and given out; whoever takes it reads the value of `name`, and sets `told`."""
    if on_error not in ("raise", "tell"):
        raise ProgramMistake(f"on_error must be 'raise' or 'tell', got {on_error!r}.")
    known = as_tools(tools)
    for number in range(max_turns):
        with s.assistant():
            s += gen(name, tools=known, tool_choice="auto" if number else tool_choice, **options)
        turn = _Turn(on_error)
        yield turn
        if turn.told is None:
            return
        s += tool(turn.told)
    s.assistant(gen(name, **options))


def _text(result: object) -> str:
    """What a tool came to, as the model reads it."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except TypeError:
        from pydantic import TypeAdapter

        return TypeAdapter(object).dump_json(result, fallback=str).decode()
