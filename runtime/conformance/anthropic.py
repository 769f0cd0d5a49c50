"""Checks of Anthropic's messages, through its `anthropic` client."""

from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect, refused
from branchpoint.runtime.conformance.server import Server, need
from branchpoint.runtime.conformance.shapes import QUESTION, SCHEMA, Person

__all__ = ["CHECKS"]

_TOOL: Final = {"name": "note", "description": "Note a person.", "input_schema": SCHEMA}
_COLD: Final = {"temperature": 0}  # newer clients have no argument for it


def _client(server: Server) -> Any:
    return need("anthropic").Anthropic(base_url=server.url, api_key=server.key, max_retries=0, timeout=server.seconds)


def _asked(server: Server, **fields: Any) -> dict[str, Any]:
    asked = {"model": server.model, "max_tokens": 200, "messages": [{"role": "user", "content": QUESTION}], "extra_body": _COLD}
    return asked | fields


def _message_has_anthropics_shape(server: Server) -> None:
    """A message has text blocks, a stop reason and usage."""
    message = _client(server).messages.create(**_asked(server, max_tokens=8, system="Be brief."))
    equal((message.type, message.role, message.content[0].type), ("message", "assistant", "text"), "type, role, block")
    expect(message.stop_reason in ("end_turn", "max_tokens"), f"stop_reason {message.stop_reason!r}")
    expect(message.usage.input_tokens > 0 and message.usage.output_tokens > 0, f"came {message.usage}")


def _a_streamed_message_is_the_whole_one(server: Server) -> None:
    """The stream's text is the message's, and so is its end."""
    client = _client(server)
    whole = client.messages.create(**_asked(server, max_tokens=24))
    with client.messages.stream(**_asked(server, max_tokens=24)) as stream:
        equal("".join(stream.text_stream), whole.content[0].text, "text of the stream")
        equal(stream.get_final_message().stop_reason, whole.stop_reason, "stop_reason")


def _a_tool_is_used_with_valid_input(server: Server) -> None:
    """A named tool is used; its input is valid, and the reason is tool_use."""
    choice = {"type": "tool", "name": "note"}
    message = _client(server).messages.create(**_asked(server, tools=[_TOOL], tool_choice=choice))
    equal(message.stop_reason, "tool_use", "stop_reason")
    Person.model_validate(message.content[0].input)


def _a_streamed_tool_has_valid_input(server: Server) -> None:
    """The stream of any tool puts its input together."""
    with _client(server).messages.stream(**_asked(server, tools=[_TOOL], tool_choice={"type": "any"})) as stream:
        (used, *_) = (block for block in stream.get_final_message().content if block.type == "tool_use")
    Person.model_validate(used.input)


def _a_tools_result_goes_on(server: Server) -> None:
    """What the server answered, sent back with a result, is a conversation that goes on."""
    client, choice = _client(server), {"type": "tool", "name": "note"}
    message = client.messages.create(**_asked(server, tools=[_TOOL], tool_choice=choice))
    result = {"type": "tool_result", "tool_use_id": message.content[0].id, "content": "noted"}
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": [message.content[0].to_dict()]}]
    turns.append({"role": "user", "content": [result]})
    expect(client.messages.create(**_asked(server, messages=turns, tools=[_TOOL], max_tokens=8)).content, "expected an answer")


def _a_stop_sequence_is_told(server: Server) -> None:
    """A message that ends at a stop sequence names it."""
    client = _client(server)
    text = client.messages.create(**_asked(server, max_tokens=24)).content[0].text
    stop = next((char for char in text[1:] if char.isascii() and char.isalnum()), None)
    if stop is not None:
        message = client.messages.create(**_asked(server, max_tokens=24, stop_sequences=[stop]))
        equal((message.stop_reason, message.stop_sequence), ("stop_sequence", stop), "stop_reason and stop_sequence")


def _tokens_are_counted(server: Server) -> None:
    """count_tokens tells what the message's usage will."""
    client = _client(server)
    counted = client.messages.count_tokens(model=server.model, messages=[{"role": "user", "content": QUESTION}])
    usage = client.messages.create(**_asked(server, max_tokens=2)).usage
    equal(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0), "input_tokens")


def _system_and_blocks_are_read(server: Server) -> None:
    """System prompts and contents may be lists of text blocks, with cache_control."""
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    turn = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}
    expect(_client(server).messages.create(**_asked(server, system=[block], messages=[turn], max_tokens=4)).content, "an answer")


def _errors_are_anthropics_own(server: Server) -> None:
    """What can't be meant raises the client's own classes, streams too."""
    anthropic, client = need("anthropic"), _client(server)
    hot = _asked(server, extra_body={"temperature": 5})
    error: Any = refused(anthropic.BadRequestError, "temperature 5", client.messages.create, **hot)
    equal((error.body["type"], error.body["error"]["type"]), ("error", "invalid_request_error"), "types of the body")
    refused(anthropic.BadRequestError, "temperature 5, streamed", client.messages.create, **hot, stream=True)
    unknown = _asked(server, model="no-such-model")
    refused(anthropic.NotFoundError, "an unknown model", client.messages.create, **unknown)


CHECKS: Final[tuple[Check, ...]] = checks(
    "anthropic",
    _message_has_anthropics_shape,
    _a_streamed_message_is_the_whole_one,
    _a_tool_is_used_with_valid_input,
    _a_streamed_tool_has_valid_input,
    _a_tools_result_goes_on,
    _a_stop_sequence_is_told,
    _tokens_are_counted,
    _system_and_blocks_are_read,
    _errors_are_anthropics_own,
)
