"""Checks of the Responses API, through the `openai` client."""

from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, need
from branchpoint.runtime.conformance.shapes import QUESTION, SCHEMA, Person

__all__ = ["CHECKS"]


def _ask(server: Server, text: object = "Say hello.", **fields: Any) -> Any:
    return server.openai.responses.create(
        **{"model": server.model, "input": text, "max_output_tokens": 16, "temperature": 0, **fields}
    )


def _response_has_openais_shape(server: Server) -> None:
    """A response has text, a status and usage."""
    whole = _ask(server)
    equal(whole.object, "response", "object")
    expect(isinstance(whole.output_text, str) and whole.id, f"came {whole.model_dump()}")
    expect(whole.status in ("completed", "incomplete"), f"status {whole.status!r}")
    equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens, "total_tokens")


def _a_cut_response_is_incomplete(server: Server) -> None:
    """A response that reaches its limit is incomplete, and says why."""
    whole = _ask(server, "Count to a thousand.", max_output_tokens=1)
    equal((whole.status, whole.incomplete_details.reason), ("incomplete", "max_output_tokens"), "status and reason")


def _a_response_is_kept_and_deleted(server: Server) -> None:
    """A response can be read again until it is deleted."""
    first = _ask(server)
    equal(server.openai.responses.retrieve(first.id).output_text, first.output_text, "text")
    server.openai.responses.delete(first.id)
    refused(need("openai").NotFoundError, "a deleted response", server.openai.responses.retrieve, first.id)


def _a_response_goes_on_from_an_earlier_one(server: Server) -> None:
    """previous_response_id brings the conversation along."""
    first = _ask(server)
    second = _ask(server, "And again.", previous_response_id=first.id)
    expect(second.usage.input_tokens > _ask(server, "And again.").usage.input_tokens, "the earlier turns aren't read")
    equal(second.previous_response_id, first.id, "previous_response_id")
    unknown = "resp_" + "0" * 32
    refused(need("openai").NotFoundError, "an unknown earlier response", _ask, server, previous_response_id=unknown)


def _response_events_come_in_order(server: Server) -> None:
    """Events are numbered in order, begin with `created`, end with the whole response, and deltas are its text."""
    events = list(_ask(server, stream=True))
    equal([event.sequence_number for event in events], list(range(len(events))), "sequence numbers")
    equal(events[0].type, "response.created", "the first event")
    expect(events[-1].type in ("response.completed", "response.incomplete"), f"the last event is {events[-1].type}")
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    equal(deltas, events[-1].response.output_text, "text of the deltas")


def _a_response_is_parsed(server: Server) -> None:
    """`responses.parse` and `responses.stream` make a pydantic object of the text."""
    asked = {"model": server.model, "input": QUESTION, "text_format": Person, "max_output_tokens": 200, "temperature": 0}
    expect(isinstance(server.openai.responses.parse(**asked).output_parsed, Person), "expected a Person")
    with server.openai.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        equal(stream.get_final_response().output_text, text, "text")


def _a_response_calls_a_tool(server: Server) -> None:
    """A required tool is called with valid arguments, and its result continues the conversation."""
    tool = {"type": "function", "name": "note", "parameters": SCHEMA, "strict": True}
    asked: dict[str, Any] = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    called = _ask(server, QUESTION, **asked, max_output_tokens=200)
    (call,) = (item for item in called.output if item.type == "function_call")
    Person.model_validate_json(call.arguments)
    turns = [{"role": "user", "content": QUESTION}, call.to_dict()]
    turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "noted"})
    expect(_ask(server, turns, tools=[tool]).id, "expected an answer")


def _a_wrong_response_is_refused(server: Server) -> None:
    """What can't be meant is a 400 in the client's own class, streams too."""
    error = need("openai").BadRequestError
    refused(error, "temperature 9", _ask, server, temperature=9)
    refused(error, "temperature 9, streamed", _ask, server, temperature=9, stream=True)
    refused(error, "an empty input", _ask, server, "")


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _response_has_openais_shape,
    _a_cut_response_is_incomplete,
    _a_response_is_kept_and_deleted,
    _a_response_goes_on_from_an_earlier_one,
    _response_events_come_in_order,
    _a_response_is_parsed,
    _a_response_calls_a_tool,
    _a_wrong_response_is_refused,
)
