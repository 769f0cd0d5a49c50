"""Checks of streamed chats and of how any stream stands on the wire, through the `openai` client."""

import json
from typing import Any, Final

from branchpoint.runtime.conformance.check import Check, checks, equal, expect
from branchpoint.runtime.conformance.server import Server
from branchpoint.runtime.conformance.shapes import QUESTION, Person

__all__ = ["CHECKS"]

_USAGE: Final = {"include_usage": True}


def _chunks(server: Server, **fields: Any) -> list[Any]:
    return list(server.chat(stream=True, **fields))


def _text(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index and choice.delta
    )


def _a_stream_says_what_the_whole_answer_says(server: Server) -> None:
    """The deltas of a stream, put together, are the text of the whole answer."""
    equal(_text(_chunks(server)), server.chat().choices[0].message.content, "text of the stream")


def _the_first_chunk_has_the_role(server: Server) -> None:
    """The first chunk tells the role, and nothing is said twice: later ones leave it out."""
    chunks = _chunks(server)
    equal(chunks[0].choices[0].delta.role, "assistant", "role in the first chunk")
    expect(not any(chunk.choices[0].delta.role for chunk in chunks[1:]), "a later chunk tells a role again")


def _one_chunk_ends_the_choice(server: Server) -> None:
    """Exactly one chunk has a finish reason, the last, and it is empty: some clients drop what stands beside a reason."""
    reasons = [chunk.choices[0].finish_reason for chunk in _chunks(server, max_tokens=4)]
    expect(reasons[-1] in ("stop", "length") and not any(reasons[:-1]), f"came finish reasons {reasons}")
    expect(not _chunks(server, max_tokens=4)[-1].choices[0].delta.content, "the chunk with the reason has content")


def _all_chunks_belong_together(server: Server) -> None:
    """All chunks have one id, one model and the type of chunks."""
    chunks = _chunks(server)
    equal(len({(chunk.id, chunk.model) for chunk in chunks}), 1, "different ids and models")
    equal({chunk.object for chunk in chunks}, {"chat.completion.chunk"}, "objects")


def _no_chunk_is_without_choices_unless_usage_is_asked_for(server: Server) -> None:
    """Without include_usage each chunk has a choice: clients read choices[0]."""
    chunks = _chunks(server)
    expect(chunks and all(chunk.choices for chunk in chunks), f"a chunk has no choices: {chunks[-2:]}")


def _usage_comes_last_and_alone(server: Server) -> None:
    """With include_usage the last chunk has no choices and the usage of the whole answer; no other has one."""
    chunks = _chunks(server, stream_options=_USAGE)
    equal(chunks[-1].choices, [], "choices of the last chunk")
    expect(all(chunk.usage is None and chunk.choices for chunk in chunks[:-1]), "usage came before the end")
    usage, whole = chunks[-1].usage, server.chat().usage
    came = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    equal(came, (whole.prompt_tokens, whole.completion_tokens, whole.total_tokens), "usage")


def _usage_may_come_with_every_chunk(server: Server) -> None:
    """With continuous_usage_stats every chunk tells the usage so far, which never shrinks."""
    options = {"stream_options": _USAGE | {"continuous_usage_stats": True}}
    counts = [chunk.usage.completion_tokens for chunk in _chunks(server, extra_body=options)]
    expect(counts == sorted(counts) and counts[-1] > 0, f"came completion_tokens {counts}")


def _samples_of_a_stream_are_told_apart(server: Server) -> None:
    """With n each choice of a stream has its own role, text and end."""
    chunks = _chunks(server, n=2, temperature=1, seed=3)
    whole = server.chat(n=2, temperature=1, seed=3)
    for index in (0, 1):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        equal(sum(choice.delta.role == "assistant" for choice in own), 1, f"roles of choice {index}")
        equal(sum(choice.finish_reason is not None for choice in own), 1, f"ends of choice {index}")
        equal(_text(chunks, index), whole.choices[index].message.content, f"text of choice {index}")


def _streamed_logprobs_are_those_of_the_whole_answer(server: Server) -> None:
    """Each token's log-probability comes once, in order, whatever the chunks."""
    told = [
        entry.bytes
        for chunk in _chunks(server, logprobs=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    equal(told, [entry.bytes for entry in server.chat(logprobs=True).choices[0].logprobs.content], "tokens with logprobs")


def _the_clients_own_accumulator_works(server: Server) -> None:
    """`chat.completions.stream` puts the message together, and parses it."""
    asked = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200, "temperature": 0}
    with server.openai.chat.completions.stream(**asked, response_format=Person) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    equal(final.choices[0].message.content, deltas, "the final message")
    expect(isinstance(final.choices[0].message.parsed, Person), f"expected a Person, came {final.choices[0].message}")


def _a_stream_is_events_and_ends_with_done(server: Server) -> None:
    """On the wire a stream is `data: {…}` events, after which comes `data: [DONE]`."""
    asked = {"model": server.model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4, "stream": True}
    with server.openai.chat.completions.with_streaming_response.create(**asked) as answer:
        kind = answer.headers["content-type"]
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    expect(kind.startswith("text/event-stream"), f"content-type {kind!r}")
    equal(lines[-1], "data: [DONE]", "the last line")
    for line in lines[:-1]:
        expect(line.startswith("data: ") and isinstance(json.loads(line[6:]), dict), f"no event: {line}")


def _a_stream_that_is_left_harms_nobody(server: Server) -> None:
    """A client may leave a stream; the server goes on."""
    stream = server.chat(stream=True, max_tokens=200, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    expect(server.chat(max_tokens=2).choices, "expected an answer after the stream was left")


def _characters_are_never_cut(server: Server) -> None:
    """A character of several tokens comes whole: the stream replaces none that the whole answer has."""
    asked: dict[str, Any] = {"content": "Repeat: 日本語 🎈 ñ", "max_tokens": 32}
    equal(_text(_chunks(server, **asked)), server.chat(**asked).choices[0].message.content, "text of the stream")


CHECKS: Final[tuple[Check, ...]] = checks(
    "openai",
    _a_stream_says_what_the_whole_answer_says,
    _the_first_chunk_has_the_role,
    _one_chunk_ends_the_choice,
    _all_chunks_belong_together,
    _no_chunk_is_without_choices_unless_usage_is_asked_for,
    _usage_comes_last_and_alone,
    _usage_may_come_with_every_chunk,
    _samples_of_a_stream_are_told_apart,
    _streamed_logprobs_are_those_of_the_whole_answer,
    _the_clients_own_accumulator_works,
    _a_stream_is_events_and_ends_with_done,
    _a_stream_that_is_left_harms_nobody,
    _characters_are_never_cut,
)
