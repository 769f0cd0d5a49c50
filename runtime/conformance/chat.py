"""Checks of whole chat completions, through the `openai` client."""

from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect
from branchpoint.runtime.conformance.server import Server, Skipped
from branchpoint.runtime.conformance.shapes import TOOL

__all__ = ["CHECKS"]


def _chat_has_openais_shape(server: Server) -> None:
    """A chat completion has the fields that clients read, and one message of the assistant."""
    whole = server.chat()
    equal(whole.object, "chat.completion", "object")
    expect(whole.id and whole.created > 0 and whole.model, f"expected id, created and model, came {whole.model_dump()}")
    equal([choice.index for choice in whole.choices], [0], "indices of choices")
    equal(whole.choices[0].message.role, "assistant", "role")
    expect(isinstance(whole.choices[0].message.content, str), "content must be a text")
    expect(whole.choices[0].finish_reason in ("stop", "length"), f"finish_reason {whole.choices[0].finish_reason!r}")


def _usage_adds_up_and_tells_cached_tokens(server: Server) -> None:
    """Usage tells prompt, completion, their sum, and cached tokens, in every answer."""
    usage = server.chat(max_tokens=3).usage
    expect(usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 3, f"came {usage}")
    equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total_tokens")
    expect(usage.prompt_tokens_details is not None, "expected prompt_tokens_details")
    expect(usage.prompt_tokens_details.cached_tokens is not None, "expected prompt_tokens_details.cached_tokens")


def _max_completion_tokens_wins(server: Server) -> None:
    """Where both are given, max_completion_tokens bounds the output, not the older max_tokens."""
    whole = server.chat(max_tokens=12, max_completion_tokens=2)
    expect(whole.usage.completion_tokens <= 2, f"expected at most 2 tokens, came {whole.usage.completion_tokens}")


def _a_cut_output_ends_with_length(server: Server) -> None:
    """An output that reaches its limit says so."""
    whole = server.chat(max_tokens=2, extra_body={"ignore_eos": True})
    equal((whole.choices[0].finish_reason, whole.usage.completion_tokens), ("length", 2), "finish_reason and tokens")


def _temperature_0_repeats(server: Server) -> None:
    """At temperature 0 the same request gives the same text."""
    equal(server.chat().choices[0].message.content, server.chat().choices[0].message.content, "the second text")


def _a_seed_repeats(server: Server) -> None:
    """With a seed the same request gives the same text at any temperature."""
    first, second = (server.chat(temperature=1.2, seed=7).choices[0].message.content for _ in range(2))
    equal(second, first, "the second text of one seed")


def _n_gives_choices_and_counts_the_prompt_once(server: Server) -> None:
    """`n` gives so many choices, in order; the prompt counts once, the completions together."""
    one, several = server.chat(max_tokens=4), server.chat(max_tokens=4, n=3, temperature=1)
    equal([choice.index for choice in several.choices], [0, 1, 2], "indices of choices")
    equal(several.usage.prompt_tokens, one.usage.prompt_tokens, "prompt_tokens with n=3")
    expect(3 <= several.usage.completion_tokens <= 12, f"expected 3 to 12 tokens, came {several.usage.completion_tokens}")


def _a_stop_string_ends_the_text_before_itself(server: Server) -> None:
    """The text ends where a stop string begins, which isn't part of it."""
    text = server.chat(max_tokens=24).choices[0].message.content
    stop = next((char for char in text[1:] if char.isascii() and char.isalnum()), None)
    if stop is None:
        raise Skipped("the model said nothing that could be a stop string")
    choice = server.chat(max_tokens=24, stop=[stop, "never said"]).choices[0]
    equal((choice.message.content, choice.finish_reason), (text[: text.index(stop)], "stop"), f"text and reason, stop {stop!r}")


def _logprobs_spell_the_text(server: Server) -> None:
    """Each token has a log-probability and the alternatives asked for, the best first; their bytes are the text's."""
    choice = server.chat(logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True}).choices[0]
    entries = choice.logprobs.content
    spelled = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
    expect(spelled.startswith(choice.message.content), f"bytes spell {spelled!r}, the text is {choice.message.content!r}")
    for entry in entries:
        best = [other.logprob for other in entry.top_logprobs]
        expect(len(best) >= 3 and entry.logprob <= 0, f"expected 3 alternatives, came {entry}")
        expect(best[-3:] == sorted(best[-3:], reverse=True), f"alternatives must come the best first, came {best}")


def _a_bias_of_100_forces_its_token(server: Server) -> None:
    """`logit_bias` of 100 makes its token the only one."""
    entries = server.chat(max_tokens=4, logprobs=True, logit_bias={"100": 100}).choices[0].logprobs.content
    equal(len({tuple(entry.bytes) for entry in entries}), 1, "different tokens")


def _content_in_parts_is_the_same_text(server: Server) -> None:
    """Content may be a list of text parts, which reads as one text."""
    parts = [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]
    asked = server.chat(messages=[{"role": "user", "content": parts}])
    whole = server.chat()
    equal(asked.usage.prompt_tokens, whole.usage.prompt_tokens, "prompt_tokens of the parts")
    equal(asked.choices[0].message.content, whole.choices[0].message.content, "text")


def _system_and_developer_are_one_role(server: Server) -> None:
    """`developer`, OpenAI's newer name, is the system's role."""
    counts = [
        server.chat(messages=[{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi."}]).usage.prompt_tokens
        for role in ("system", "developer")
    ]
    equal(counts[1], counts[0], "prompt_tokens of the developer's message")


def _nulls_are_absent(server: Server) -> None:
    """Explicit nulls mean absent: frameworks send them for all they weren't told."""
    names = (
        "stop n top_p seed logit_bias logprobs top_logprobs tools tool_choice response_format stream stream_options user "
        "presence_penalty frequency_penalty parallel_tool_calls reasoning_effort max_completion_tokens metadata store"
    )
    whole = server.chat(extra_body=dict.fromkeys(names.split()))
    equal(whole.choices[0].message.content, server.chat().choices[0].message.content, "text with nulls")


def _what_describes_the_caller_is_accepted(server: Server) -> None:
    """Fields that only describe the caller are accepted and change nothing."""
    told: dict[str, Any] = {"user": "u1", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    equal(server.chat(**told).choices[0].message.content, server.chat().choices[0].message.content, "text")


def _calls_and_results_of_earlier_turns_are_read(server: Server) -> None:
    """A conversation may hold calls of tools, with null content, and their results."""
    call = {"id": "call_1", "type": "function", "function": {"name": "note", "arguments": '{"name": "Ann", "age": 31}'}}
    messages = [
        {"role": "user", "content": "Note Ann, who is 31."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noted"},
    ]
    expect(server.chat(messages=messages, tools=[TOOL]).choices, "expected an answer")


def _every_answer_has_a_request_id(server: Server) -> None:
    """The header x-request-id tells the request's id, which may be the caller's own."""
    expect(server.chat()._request_id, "expected the header x-request-id")
    given = server.chat(extra_headers={"X-Request-Id": "conformance-1"})._request_id
    equal(given, "conformance-1", "x-request-id")


def _penalties_and_filters_are_accepted(server: Server) -> None:
    """OpenAI's and the usual further sampling options are served together."""
    more = {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 2}
    whole = server.chat(temperature=0.7, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, extra_body=more)
    expect(whole.usage.completion_tokens >= 2, f"min_tokens is 2, came {whole.usage.completion_tokens} tokens")


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _chat_has_openais_shape,
    _usage_adds_up_and_tells_cached_tokens,
    _max_completion_tokens_wins,
    _a_cut_output_ends_with_length,
    _temperature_0_repeats,
    _a_seed_repeats,
    _n_gives_choices_and_counts_the_prompt_once,
    _a_stop_string_ends_the_text_before_itself,
    _logprobs_spell_the_text,
    _a_bias_of_100_forces_its_token,
    _content_in_parts_is_the_same_text,
    _system_and_developer_are_one_role,
    _nulls_are_absent,
    _what_describes_the_caller_is_accepted,
    _calls_and_results_of_earlier_turns_are_read,
    _every_answer_has_a_request_id,
    _penalties_and_filters_are_accepted,
)
