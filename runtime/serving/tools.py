"""Tools that a request offers its model: from OpenAI's fields to what the template shows, what the output is held to, and how
it is read.

Arguments are always held to their tool's schema; with `auto` the model is free around its calls, which are found in what it
writes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from branchpoint.constrained.spec import Constraint, JsonSchema, StructuralTag
from branchpoint.runtime.serving.errors import bad_request, shown
from branchpoint.runtime.serving.reply import CLOSE, OPEN, PLAIN, THINK, THOUGHT, Format
from branchpoint.runtime.serving.wire import Json, Rules, as_request

__all__ = ["NO_TOOLS", "ToolFields", "ToolUse", "held_calls", "tool_use"]

MAX_TOOLS = 512
MOST_CALLS = 16
_CHOICES = ("none", "auto", "required")
_PROMPT = """# Tools

You may call one or more functions to help the user. Their signatures, one JSON object a line:
<tools>
{tools}
</tools>

For each call, answer with a JSON object of its name and arguments between these tags:
<tool_call>
{{"name": "function_name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ToolFields:
    """The fields of chat that are about tools."""

    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None


class _Tool(msgspec.Struct, frozen=True):
    type: str
    function: Json


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class _Named(msgspec.Struct, frozen=True):
    type: str
    function: Json | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`shown` are the tools for the template. `constraint` is what the output is held to, `prefix` what it goes on from.

    `tags` are the calls that free text may hold (see `held_calls`), at most one of them with `once`. `finish` is the finish
    reason of a sample that ends by itself with a complete call.
    """

    shown: tuple[Json, ...] = ()
    constraint: Constraint | None = None
    prefix: str = ""
    form: Format = PLAIN
    finish: str = "tool_calls"
    field: str = "tools"
    tags: tuple[Json, ...] = ()
    once: bool = False

    def text(self) -> str:
        """The tools as a system prompt, for a template that knows none."""
        lines = "\n".join(msgspec.json.encode(tool).decode() for tool in self.shown)
        return _PROMPT.format(tools=lines)


NO_TOOLS = ToolUse()


def tool_use(fields: ToolFields, *, constrained: bool) -> ToolUse:
    """What a request's tools mean; `constrained` says that it asks for an output format too. Raises InvalidRequest."""
    functions = _functions(fields.tools)
    choice, named = _choice(fields, functions)
    if not functions or choice == "none":
        return NO_TOOLS
    if choice != "auto" and constrained:
        raise bad_request("tool_choice and an output format can't both hold the output; leave one out.", "tool_choice")
    shown = tuple(fields.tools or ())
    names = frozenset(functions)
    if choice == "auto":
        tags = tuple(_tag(name, function) for name, function in functions.items())
        return ToolUse(shown, form=Format("tagged", names), tags=tags, once=fields.parallel_tool_calls is False)
    if named:
        head = f'{OPEN}\n{{"name": {json.dumps(named)}, "arguments": '
        form = Format("arguments", names, named)
        return ToolUse(shown, JsonSchema(_encoded(_parameters(functions[named]))), head, form, "stop")
    if fields.parallel_tool_calls is False:
        return ToolUse(shown, JsonSchema(_encoded(_one_of(functions))), form=Format("bare", names))
    several = {"type": "array", "minItems": 1, "maxItems": MOST_CALLS, "items": _one_of(functions)}
    return ToolUse(shown, JsonSchema(_encoded(several)), form=Format("list", names))


def held_calls(use: ToolUse, *, reasons: bool, thinking: bool) -> StructuralTag:
    """Free text in which `<tool_call>` begins a call of one of the tools, with arguments of its schema.

    With `reasons` the output may begin with thoughts, in which nothing is held; with `thinking` it does.
    """
    calls: Json = {"type": "triggered_tags", "triggers": [OPEN], "tags": use.tags, "stop_after_first": use.once}
    form = calls
    if reasons:
        thoughts = {"type": "tag", "begin": "" if thinking else THINK, "content": {"type": "any_text"}, "end": THOUGHT}
        form = {"type": "sequence", "elements": [thoughts, calls]}
        if not thinking:
            form = {"type": "or", "elements": [form, calls | {"excludes": [THINK]}]}
    return StructuralTag(_encoded({"type": "structural_tag", "format": form}))


def _tag(name: str, function: _Function) -> Json:
    schema: Json = {"type": "object"} if function.strict is False else _parameters(function)
    content: Json = {"type": "json_schema", "json_schema": schema}
    begin = f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": '
    return {"begin": begin, "content": content, "end": f"}}\n{CLOSE}"}


def _functions(tools: Sequence[Json] | None) -> dict[str, _Function]:
    if tools is None:
        return {}
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"tools may hold {MAX_TOOLS} entries, got {len(tools)}.", "tools")
    functions = dict[str, _Function]()
    for place, value in enumerate(tools):
        where = f"tools[{place}]."
        tool = as_request(value, _Tool, Rules(), where)
        if tool.type != "function":
            raise bad_request(f"{where}type must be function, got {shown(tool.type)}.", where + "type")
        function = as_request(tool.function, _Function, Rules(), where + "function.")
        if not function.name or function.name in functions:
            raise bad_request(
                f"{where}function.name must be a name of its own, got {shown(function.name)}.", where + "function.name"
            )
        functions[function.name] = function
    return functions


def _choice(fields: ToolFields, functions: Mapping[str, _Function]) -> tuple[str, str]:
    """The mode, and the name where one tool is named."""
    given = fields.tool_choice
    if given is None:
        return ("auto" if functions else "none"), ""
    if isinstance(given, str):
        if given not in _CHOICES:
            raise bad_request(f"tool_choice must be none, auto, required or a function, got {shown(given)}.", "tool_choice")
        if given == "required" and not functions:
            raise bad_request("tool_choice required needs tools.", "tool_choice")
        return given, ""
    named = as_request(given, _Named, Rules(), "tool_choice.")
    name = (named.function or {}).get("name", named.name)
    if named.type not in ("function", "tool") or not isinstance(name, str):
        raise bad_request("tool_choice must name a function.", "tool_choice")
    if name not in functions:
        raise bad_request(f"tool_choice names {shown(name)}, which is none of tools.", "tool_choice")
    return "named", name


def _parameters(function: _Function) -> Json:
    return {"type": "object", **(function.parameters or {"properties": {}, "additionalProperties": False})}


def _one_of(functions: Mapping[str, _Function]) -> Json:
    """The schema of one call, `{name, arguments}`. Parameters are resources of their own: references lead into their own."""
    calls = list[Json]()
    for place, (name, function) in enumerate(functions.items()):
        properties = {"name": {"const": name}, "arguments": {"$id": f"tool:{place}", **_parameters(function)}}
        calls.append(
            {"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": False}
        )
    return {"anyOf": calls} if len(calls) > 1 else calls[0]


def _encoded(schema: Json) -> str:
    try:
        return msgspec.json.encode(schema).decode()
    except RecursionError as error:
        raise bad_request("The parameters of a tool are nested too deeply.", "tools") from error
