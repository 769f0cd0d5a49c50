"""The functions that make expressions: `gen` and its typed forms, `select`, roles, and the patterns a `gen` can be held to.

Everything that can be checked without a model is checked here, on the line that is wrong.
"""

import builtins
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Unpack, overload

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, KeyOrder, Regex, Strictness, Whitespace
from branchpoint.lang.choices import ChoicesMethod, ScoredOption, method_of
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.expr import ExprLike, Gen, Join, RoleBegin, RoleEnd, Select, role
from branchpoint.lang.options import Pick, SamplingOptions, merge, sampling_params
from branchpoint.lang.tools import Tool, tool_of, tool_use
from branchpoint.lang.types import output_type
from branchpoint.runtime.errors import InvalidRequest

__all__ = [
    "Method",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "ebnf",
    "gen",
    "gen_bool",
    "gen_float",
    "gen_int",
    "gen_string",
    "json_schema",
    "regex",
    "select",
    "substring",
    "system",
    "system_begin",
    "system_end",
    "tool",
    "tool_begin",
    "tool_end",
    "user",
    "user_begin",
    "user_end",
]

Method = str | ChoicesMethod | Callable[[Sequence[ScoredOption]], Sequence[float]]
"""How a `select` decides: a method's name, the method, or a function that gives each scored option a number."""


def gen(
    name: str | None = None,
    type: object = None,
    *,
    dtype: object = None,
    regex: str | None = None,
    ebnf: str | None = None,
    json_schema: str | Mapping[str, object] | None = None,
    choices: Sequence[str] | None = None,
    method: Literal["score", "mask"] = "score",
    choices_method: Method = "total",
    tools: Iterable[Tool | Callable[..., object]] | None = None,
    tool_choice: str = "auto",
    pick: Pick = 0,
    **options: Unpack[SamplingOptions],
) -> Gen | Select:
    """Generate into the variable `name`.

    `type` is the type of the value (int, a pydantic model, list[str], a Literal, a pattern made by `regex(...)`, …), or a
    number: `max_tokens`. `dtype` is another name of it. Without `max_tokens` the text ends at a stop, at the model's end token or
    at the context's end. `regex` and `ebnf` hold the text to a pattern, `json_schema` to a JSON value, which is then the text.
    `tools` are functions that the model may call, by `tool_choice` ("auto", "required", "none" or one's name): the value is then
    a `ToolCall`, else the text. `choices` makes it a `select`; with `method="mask"` it is decoded freely, held to the choices.
    `n` samples give a list; the state goes on from the one that `pick` names. Raises ProgramMistake and InvalidRequest at once.
    """
    if isinstance(type, int) and not isinstance(type, bool):
        options, type = merge({"max_tokens": type}, options), None
    asked = [type, dtype, regex, ebnf, json_schema, choices, tools]
    if sum(given is not None for given in asked) > 1:
        raise ProgramMistake("gen takes one of a type, dtype, regex, ebnf, json_schema, choices and tools, got several.")
    if choices is not None and method != "mask":
        if idle := options.keys() - {"temperature", "seed"}:
            raise ProgramMistake(f"gen with choices takes no {', '.join(sorted(idle))}; it scores them. Or give method='mask'.")
        temperature = options.get("temperature", 0.0)
        return select(name, choices, temperature, choices_method=choices_method, seed=options.get("seed"))
    sampling_params(options)
    if tools is not None and (use := tool_use(tools, tool_choice)) is not None:
        return Gen(_checked(name), use.output, None, merge(options), pick, tools=use)
    output = output_type(type if type is not None else dtype) if type is not None or dtype is not None else None
    constraint = output.constraint if output is not None else _constraint(regex, ebnf, json_schema, choices)
    if constraint is None and options.get("close") == "steer":
        raise ProgramMistake(
            'close="steer" needs a type, a pattern, a grammar, a schema or choices to whose end a text is steered.'
        )
    return Gen(_checked(name), output, constraint, merge(options), pick)


def _constraint(
    regex: str | None, ebnf: str | None, json_schema: str | Mapping[str, object] | None, choices: Sequence[str] | None
) -> Constraint | None:
    if regex is not None:
        return Regex(_text("regex", regex))
    if ebnf is not None:
        return Ebnf(_text("ebnf", ebnf))
    if json_schema is not None:
        return JsonSchema(_schema(json_schema))
    return Choice(_options(choices)) if choices is not None else None


def _text(what: str, given: object) -> str:
    if not isinstance(given, str):
        hint = f" Write gen(name, {what}(...))." if isinstance(given, Regex | Ebnf) else ""
        raise ProgramMistake(f"{what} must be a string, got {type(given).__name__} {given!r:.60}.{hint}")
    return given


def _schema(given: object) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        hint = " For a type, write gen(name, TheType)." if isinstance(given, builtins.type | JsonSchema) else ""
        raise ProgramMistake(f"json_schema must be a dict or JSON text, got {given!r:.80}.{hint}")
    try:
        return json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramMistake(f"json_schema must be a dict that JSON can hold: {error}.") from None


def _checked(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ProgramMistake(f"The first argument is the variable's name, a string; got {name!r}.")
    return name or None


def gen_int(name: str | None = None, **options: Unpack[SamplingOptions]) -> Gen | Select:
    """Generate an int."""
    return gen(name, int, **options)


def gen_float(name: str | None = None, **options: Unpack[SamplingOptions]) -> Gen | Select:
    """Generate a float."""
    return gen(name, float, **options)


def gen_bool(name: str | None = None, **options: Unpack[SamplingOptions]) -> Gen | Select:
    """Generate a bool."""
    return gen(name, bool, **options)


def gen_string(name: str | None = None, **options: Unpack[SamplingOptions]) -> Gen | Select:
    """Generate a str."""
    return gen(name, str, **options)


def _options(choices: Sequence[str]) -> tuple[str, ...]:
    options = tuple(choices) if isinstance(choices, Iterable) else (choices,)
    if isinstance(choices, str) or not all(isinstance(option, str) for option in options):
        raise ProgramMistake(f"choices must be a list of strings, got {choices!r:.80}.")
    if not options or not all(options):
        raise InvalidRequest("choices must hold at least one option, and none may be empty.", param="choices")
    return options


def select(
    name: str | None = None,
    choices: Sequence[str] = (),
    temperature: float = 0.0,
    choices_method: Method = "total",
    *,
    seed: int | None = None,
) -> Select:
    """Choose one of `choices` into the variable `name`, by scoring each as the text's continuation.

    `temperature` samples from the options' distribution, 0 takes the best. `choices_method` is a name or a function of the scored
    options. Raises InvalidRequest for no options.
    """
    sampling_params({"temperature": temperature, "seed": seed})
    return Select(_checked(name), _options(choices), method_of(choices_method), float(temperature), seed)


def system(expression: ExprLike = "") -> Join:
    """A system message, without an expression an empty one."""
    return role("system", expression)


def user(expression: ExprLike = "") -> Join:
    """A user's message, without an expression an empty one."""
    return role("user", expression)


def assistant(expression: ExprLike = "") -> Join:
    """The model's message, without an expression an empty one."""
    return role("assistant", expression)


@overload
def tool(expression: ExprLike) -> Join: ...
@overload
def tool(expression: Callable[..., object]) -> Tool: ...
def tool(expression: ExprLike | Callable[..., object]) -> Join | Tool:
    """A tool's answer; or, of a typed function (as a decorator, too), a `Tool` that a model may call."""
    return tool_of(expression) if callable(expression) else role("tool", expression)


def system_begin() -> RoleBegin:
    """Open a system message."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """Close a system message."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """Open a user's message."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """Close a user's message."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """Open the model's message."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """Close the model's message."""
    return RoleEnd("assistant")


def tool_begin() -> RoleBegin:
    """Open a tool's answer."""
    return RoleBegin("tool")


def tool_end() -> RoleEnd:
    """Close a tool's answer."""
    return RoleEnd("tool")


def regex(pattern: str) -> Regex:
    """A pattern for `gen(name, regex(...))`: the whole output matches it."""
    return Regex(_text("regex", pattern))


def ebnf(grammar: str) -> Ebnf:
    """A grammar for `gen(name, ebnf(...))`, in Lark or GBNF syntax."""
    return Ebnf(_text("ebnf", grammar))


def json_schema(
    schema: str | Mapping[str, object],
    *,
    order: KeyOrder = "declared",
    whitespace: Whitespace = "compact",
    strictness: Strictness = "exact",
) -> JsonSchema:
    """A JSON schema for `gen(name, json_schema(...))`; the value is the parsed JSON.

    Keys come in the order in which the schema declares them, or with `order="any"` as the model likes. `whitespace="flexible"`
    lets spaces and indented lines in. A keyword that can't be held is an error; with `strictness="stricter"` what it stands in is
    left out instead, and `meta("x").narrowed` says so.
    """
    return JsonSchema(_schema(schema), whitespace, order=order, strictness=strictness)


def substring(text: str) -> Ebnf:
    """Any stretch of `text`, for `gen(name, substring(...))`: the output quotes it character by character."""
    return Ebnf("start: QUOTE\nQUOTE: %regex " + json.dumps({"substring_chars": _text("substring", text)}))
