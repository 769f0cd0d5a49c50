"""Tools: Python functions that a model may call. `tool(fn)` makes one, `gen(name, tools=[...])` offers them.

A tool's parameters are a JSON schema, which a call is held to. `calling.py` performs such a gen, `agent.py` is the loop around.
"""

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast, get_type_hints

from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.types import OutputType, output_type

__all__ = ["CLOSE", "OPEN", "Tool", "ToolCall", "ToolUse", "as_tools", "split_call", "tool_of", "tool_prompt", "tool_use"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_PARAMETER = re.compile(r"^\s*(?::param\s+)?\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Marks around a call, as most models that were taught to call tools write them."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call, with what the model is told of it. Calling the tool calls the function.

    `parameters` is the JSON schema of its arguments, an object; `read` makes of such an object what the function takes.
    """

    name: str
    description: str
    parameters: Mapping[str, object]
    function: Callable[..., object]
    read: Callable[[Mapping[str, object]], Mapping[str, object]] = field(default=lambda arguments: arguments, repr=False)

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ProgramMistake(f"A tool's name has 1 to 64 letters, digits, '_', '-' or '.', got {self.name!r}.")

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def asynchronous(self) -> bool:
        """Whether calling gives something to await."""
        return inspect.iscoroutinefunction(self.function)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a gen with tools comes to where the model calls one. `arguments` are as the model wrote them, checked."""

    tool: Tool
    arguments: Mapping[str, object]

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    def run(self) -> object:
        """Call the function. Raises what it raises, ProgramMistake where it is `async`."""
        if self.tool.asynchronous:
            raise ProgramMistake(f"Tool {self.name!r} is async; write `await call.arun()`, in an async program.")
        return self.tool(**self.tool.read(self.arguments))

    async def arun(self) -> object:
        """Call the function, a plain one in a thread, so that the event loop goes on."""
        import asyncio

        if not self.tool.asynchronous:
            return await asyncio.to_thread(self.run)
        return await cast(Any, self.tool(**self.tool.read(self.arguments)))

    def __str__(self) -> str:
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a gen may call `tools`: `choice` is auto, required, or one's name; `call` is what a call is held to and read by."""

    tools: tuple[Tool, ...]
    choice: str
    call: OutputType
    output: OutputType

    @property
    def required(self) -> bool:
        """Whether the model must call one."""
        return self.choice != "auto"


def tool_of(function: Callable[..., object]) -> Tool:
    """A tool of a function whose parameters are typed; its docstring is the description, an `Args:` section that of parameters.

    `Annotated[int, Field(description=..., ge=1)]` is understood. Raises ProgramMistake for what can't be told to a model.
    """
    from pydantic import ConfigDict, Field, create_model

    if isinstance(function, Tool):
        return function
    name = getattr(function, "__name__", type(function).__name__)
    described, told = _documented(inspect.getdoc(function) or "")
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ProgramMistake(f"A tool's parameters must have names; {name} has {parameter}.")
        if parameter.name not in hints:
            raise ProgramMistake(f"A tool's parameters must be typed; write {name}({parameter.name}: str, ...).")
        default = ... if parameter.default is parameter.empty else parameter.default
        text = told.get(parameter.name)
        kind = Annotated[hints[parameter.name], Field(description=text)] if text else hints[parameter.name]
        fields[f"p_{parameter.name}"] = (kind, Field(default, alias=parameter.name))
    model = create_model(name, __config__=ConfigDict(arbitrary_types_allowed=False), **fields)
    output = output_type(model)
    schema = cast(Mapping[str, object], json.loads(cast(Any, output.constraint).schema))

    def read(arguments: Mapping[str, object]) -> Mapping[str, object]:
        parsed = output.parse(json.dumps(arguments))
        return {key[2:]: getattr(parsed, key) for key in fields}

    return Tool(name, described, cast(Mapping[str, object], _untitled(schema)), function, read)


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The description, and what is said of each parameter."""
    described, told, inside = list[str](), dict[str, str](), False
    for line in text.splitlines():
        found = _PARAMETER.match(line)
        if _SECTION.match(line):
            inside = True
        elif found and (inside or line.lstrip().startswith(":param")):
            told[found[1]] = found[2].strip()
        elif inside and line and not line[0].isspace():
            break  # the next section: what comes back isn't the model's to know
        elif not inside and not line.startswith(":"):
            described.append(line)
    return "\n".join(described).strip(), told


def _untitled(schema: object, names: bool = False) -> object:
    """A schema without the titles that pydantic gives: they only cost tokens. `names`: its keys are names, not keywords."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("default", "const", "enum", "examples") and not names else _untitled(value, _is_named(key, names))
        for key, value in schema.items()
        if names or key != "title"
    }


def _is_named(key: str, names: bool) -> bool:
    return not names and key in ("properties", "$defs", "definitions", "patternProperties")


def as_tools(tools: Iterable["Tool | Callable[..., object]"]) -> tuple[Tool, ...]:
    """Tools of tools and functions. Raises ProgramMistake for anything else, or two of one name."""
    if not isinstance(tools, Iterable) or isinstance(tools, str):
        raise ProgramMistake(f"tools must be a list of functions, got {tools!r:.60}.")
    found: dict[str, Tool] = {}
    for each in tools:
        if not callable(each):
            raise ProgramMistake(f"A tool is a function or what tool(function) makes of it, got {each!r:.60}.")
        made = each if isinstance(each, Tool) else tool_of(each)
        if made.name in found:
            raise ProgramMistake(f"Two tools are called {made.name!r}; the model couldn't tell them apart.")
        found[made.name] = made
    return tuple(found.values())


def tool_use(tools: Iterable["Tool | Callable[..., object]"], choice: str) -> ToolUse | None:
    """How a gen may use these tools; None where it may not. `choice` is auto, required, none, or the name of the only one.

    Raises ProgramMistake.
    """
    known = as_tools(tools)
    if choice in ("none", "auto") and not known:
        return None
    named = tuple(each for each in known if choice in ("auto", "required", each.name))
    if choice == "none":
        return None
    if not named:
        names = ", ".join(each.name for each in known) or "no tools"
        raise ProgramMistake(f"tool_choice must be 'auto', 'required', 'none' or the name of a tool ({names}), got {choice!r}.")
    call = _call_type(named)

    def read(text: str) -> object:
        parts = split_call(text)
        return text if parts is None else call.parse(parts[1])

    return ToolUse(named, choice, call, OutputType("tool call", None, read))


def split_call(text: str) -> tuple[str, str] | None:
    """What `text` says, and the call that it ends in, without its marks; None where it ends in none.

    Text and arguments may hold the marks, too: the call begins at the first one that JSON up to the end follows.
    """
    if not text.endswith(CLOSE):
        return None
    opens = [mark.start() for mark in re.finditer(OPEN, text)]
    for at in opens:
        call = text[at + len(OPEN) : -len(CLOSE)].strip()
        with contextlib.suppress(ValueError):
            if call.startswith("{") and isinstance(json.loads(call), dict):
                return text[:at], call
    return (text[: opens[0]], text[opens[0] + len(OPEN) : -len(CLOSE)].strip()) if opens else None


def _call_type(tools: Sequence[Tool]) -> OutputType:
    """A call of one of `tools`: `{"name": …, "arguments": {…}}`."""
    from branchpoint.constrained.spec import JsonSchema

    by_name = {each.name: each for each in tools}
    shapes, definitions = list[object](), dict[str, object]()
    for number, each in enumerate(tools):
        arguments = _hoisted(each.parameters, f"t{number}_", definitions)
        shapes.append(
            {
                "type": "object",
                "properties": {"name": {"const": each.name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    whole: dict[str, object] = {"anyOf": shapes} if len(shapes) > 1 else cast(dict[str, object], shapes[0])
    schema = json.dumps({**whole, "$defs": definitions} if definitions else whole)

    def parse(text: str) -> ToolCall:
        call = json.loads(text)
        if not isinstance(call, dict) or call.get("name") not in by_name or not isinstance(call.get("arguments"), dict):
            raise ValueError(f"expected the name of a tool and its arguments, got {text[:80]!r}")
        found = by_name[call["name"]]
        found.read(call["arguments"])
        return ToolCall(found, call["arguments"])

    return OutputType("tool call", JsonSchema(schema), parse)


def _hoisted(schema: object, prefix: str, definitions: dict[str, object]) -> object:
    """`schema` with its definitions put into `definitions`, under names with `prefix`, and its references changed."""
    if isinstance(schema, list):
        return [_hoisted(each, prefix, definitions) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, object] = {}
    for key, value in schema.items():
        if key in ("$defs", "definitions") and isinstance(value, Mapping):
            definitions.update({prefix + name: _hoisted(each, prefix, definitions) for name, each in value.items()})
        elif key == "$ref" and isinstance(value, str):
            found[key] = re.sub(r"^#/(\$defs|definitions)/", f"#/$defs/{prefix}", value)
        elif key != "$schema":
            found[key] = _hoisted(value, prefix, definitions)
    return found


def tool_prompt(tools: Iterable["Tool | Callable[..., object]"]) -> str:
    """What to tell a model of these tools, for a system message: their schemas, and how a call is written."""
    lines = [
        json.dumps({"name": each.name, "description": each.description, "parameters": each.parameters}, ensure_ascii=False)
        for each in as_tools(tools)
    ]
    return (
        "You may call tools. These are their names and parameters:\n<tools>\n" + "\n".join(lines) + "\n</tools>\n"
        f'To call one, write\n{OPEN}\n{{"name": "its name", "arguments": {{...}}}}\n{CLOSE}'
    )
