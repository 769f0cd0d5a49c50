"""Checks of tools, whole and streamed, through the `openai` client."""

from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, need
from branchpoint.runtime.conformance.shapes import QUESTION, SCHEMA, TOOL, Person

__all__ = ["CHECKS"]

_NOTE: Final = {"type": "function", "function": {"name": "note"}}
_CITY: Final = {
    "type": "function",
    "function": {"name": "city", "parameters": {"type": "object", "properties": {"id": {"type": "integer", "maximum": 99}}}},
}


def _ask(server: Server, choice: object = "required", **fields: Any) -> Any:
    return server.chat(QUESTION, **{"tools": [TOOL], "tool_choice": choice, "max_tokens": 200, **fields})


def _required_calls_are_held_to_their_schema(server: Server) -> None:
    """With tool_choice `required` there is a call, its arguments are valid, and the reason is tool_calls."""
    choice = _ask(server, parallel_tool_calls=False).choices[0]
    equal(choice.finish_reason, "tool_calls", "finish_reason")
    for call in choice.message.tool_calls:
        equal((call.type, call.function.name), ("function", "note"), "call")
        expect(call.id, "a call needs an id")
        Person.model_validate_json(call.function.arguments)


def _a_named_tool_is_called_and_stops(server: Server) -> None:
    """A named tool is the one that is called; the reason is `stop`, as OpenAI has it."""
    choice = _ask(server, _NOTE, tools=[_CITY, TOOL]).choices[0]
    equal([call.function.name for call in choice.message.tool_calls], ["note"], "names")
    equal(choice.finish_reason, "stop", "finish_reason")
    Person.model_validate_json(choice.message.tool_calls[0].function.arguments)


def _auto_says_or_calls(server: Server) -> None:
    """With `auto`, the default, there is text or calls, and the reason fits."""
    choice = server.chat(QUESTION, tools=[TOOL], max_tokens=40).choices[0]
    calls = choice.message.tool_calls or []
    expect(calls or choice.message.content, "neither text nor calls came")
    expect((choice.finish_reason == "tool_calls") <= bool(calls), f"{choice.finish_reason} without a call")


def _none_calls_nothing(server: Server) -> None:
    """With `none` there are no calls."""
    expect(not _ask(server, "none", max_tokens=24).choices[0].message.tool_calls, "a tool was called")


def _one_call_where_calls_may_not_be_parallel(server: Server) -> None:
    """With parallel_tool_calls false there is one call."""
    equal(len(_ask(server, parallel_tool_calls=False).choices[0].message.tool_calls), 1, "calls")


def _a_cut_call_ends_with_length(server: Server) -> None:
    """Arguments that reach the limit end with `length`, not with tool_calls; or the limit is refused, where none can fit."""
    try:
        reason = _ask(server, max_tokens=3).choices[0].finish_reason
    except need("openai").BadRequestError as error:
        equal(error.param, "max_tokens", "param")
    else:
        equal(reason, "length", "finish_reason")


def _a_streamed_call_begins_with_id_type_and_name(server: Server) -> None:
    """A call's first delta has id, type, name and empty arguments; later ones have arguments only."""
    first: dict[int, Any] = {}
    for chunk in _ask(server, _NOTE, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.index in first:
                expect(call.id is None and call.function.name is None, f"a later delta tells id or name again: {call}")
            else:
                first[call.index] = call
                came = bool(call.id), call.type, call.function.name, call.function.arguments
                equal(came, (True, "function", "note", ""), "first delta: id, type, name, arguments")
    equal(list(first), [0], "indices of calls")


def _streamed_arguments_are_those_of_the_whole_answer(server: Server) -> None:
    """The deltas of each call's arguments, put together, are the whole answer's."""
    asked: dict[str, Any] = {"parallel_tool_calls": False}
    for choice in ("required", _NOTE):
        streamed = ""
        for chunk in _ask(server, choice, stream=True, **asked):
            for call in chunk.choices[0].delta.tool_calls or []:
                streamed += call.function.arguments or ""
        equal(streamed, _ask(server, choice, **asked).choices[0].message.tool_calls[0].function.arguments, "arguments")


def _the_client_parses_the_arguments(server: Server) -> None:
    """`chat.completions.parse` makes a pydantic object of the arguments."""
    openai = need("openai")
    asked = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200, "temperature": 0}
    whole = server.openai.chat.completions.parse(
        **asked, tools=[openai.pydantic_function_tool(Person)], tool_choice="required", parallel_tool_calls=False
    )
    expect(isinstance(whole.choices[0].message.tool_calls[0].function.parsed_arguments, Person), "expected a Person")


def _a_strict_tool_is_held(server: Server) -> None:
    """`strict: true` is accepted and held."""
    strict = {"type": "function", "function": {"name": "note", "parameters": SCHEMA, "strict": True}}
    call = _ask(server, _NOTE, tools=[strict]).choices[0].message.tool_calls[0]
    Person.model_validate_json(call.function.arguments)


def _a_tool_that_isnt_there_is_refused(server: Server) -> None:
    """A tool_choice that names none of the tools is a 400."""
    wrong = {"type": "function", "function": {"name": "nope"}}
    refused(need("openai").BadRequestError, "an unknown named tool", _ask, server, wrong)


def _required_without_tools_is_refused(server: Server) -> None:
    """tool_choice `required` without tools is a 400."""
    refused(need("openai").BadRequestError, "required without tools", server.chat, tool_choice="required")


def _a_result_continues_the_conversation(server: Server) -> None:
    """What the server answered, sent back with a result, is a conversation that goes on."""
    message = _ask(server, _NOTE).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noted"}
    turns = [{"role": "user", "content": QUESTION}, message.model_dump(exclude_none=True), result]
    expect(server.chat(messages=turns, tools=[TOOL]).choices, "expected an answer")


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _required_calls_are_held_to_their_schema,
    _a_named_tool_is_called_and_stops,
    _auto_says_or_calls,
    _none_calls_nothing,
    _one_call_where_calls_may_not_be_parallel,
    _a_cut_call_ends_with_length,
    _a_streamed_call_begins_with_id_type_and_name,
    _streamed_arguments_are_those_of_the_whole_answer,
    _the_client_parses_the_arguments,
    _a_strict_tool_is_held,
    _a_tool_that_isnt_there_is_refused,
    _required_without_tools_is_refused,
    _a_result_continues_the_conversation,
)
