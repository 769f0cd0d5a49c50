"""Performs a gen that may call a tool: free text up to a call, then the call, held to the tools' schemas.

`request.py` asks for it, or `reasoning.py` after the thinking; `tools.py` says what a call is.
"""

import msgspec

from branchpoint.lang.asking import Answer, Performed, ask, ids_of, messages_of
from branchpoint.lang.backends.base import Backend
from branchpoint.lang.errors import ProgramMistake
from branchpoint.lang.expr import Gen
from branchpoint.lang.result import SampleMeta
from branchpoint.lang.tools import CLOSE, OPEN
from branchpoint.lang.variables import CallEntry
from branchpoint.runtime.messages import Delta, Segment, Text
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["call_tools"]


async def call_tools(
    backend: Backend, entry: CallEntry, expr: Gen, sampling: SamplingParams, segments: tuple[Segment, ...]
) -> Performed:
    """The text that the model says, or its call with what it said before. Raises what failed."""
    use = expr.tools
    assert use is not None, "only asked for gens with tools"
    if sampling.n != 1:
        raise ProgramMistake("A gen with tools gives one sample; leave n out.")

    def put(delta: Delta) -> None:
        entry.say(delta.text)

    if backend.capabilities.tools:
        answer = await ask(backend, entry, segments, sampling, None, put, messages_of(entry), use)
        meta = answer.samples[0].meta()
        return Performed((meta,), (ids_of(meta),), (answer,))
    said: tuple[Segment, ...] = ()
    answers: tuple[Answer, ...] = ()
    left = sampling.max_tokens
    messages = messages_of(entry)
    if not use.required:
        free = msgspec.structs.replace(sampling, stop=(*sampling.stop, OPEN), include_stop=False)
        first = await ask(backend, entry, segments, free, None, put, messages)
        meta = first.samples[0].meta()
        said, answers = ids_of(meta), (first,)
        left = None if left is None else left - len(meta.tokens)
        if meta.stop != OPEN:
            return Performed((meta,), (said,), answers)
        if left is not None and left <= 0:
            return _performed(meta, said, answers, "length")
    opening, closing = Text(f"{OPEN}\n", special=True), Text(f"\n{CLOSE}", special=True)
    entry.say(opening.text)
    # a backend of messages can't go on from the middle of one: it is asked again, for the call alone
    prompt = (*segments, *said, opening) if backend.capabilities.ids else segments
    held = msgspec.structs.replace(sampling, stop=(), stop_token_ids=(), max_tokens=left, min_tokens=0)
    second = await ask(backend, entry, prompt, held, use.call.constraint, put, messages)
    meta = second.samples[0].meta()
    whole = meta.finish_reason == "stop"
    entry.say(closing.text if whole else "")
    ends = (closing,) if whole else ()
    return _performed(meta, (*said, opening, *ids_of(meta), *ends), (*answers, second), meta.finish_reason)


def _performed(meta: SampleMeta, kept: tuple[Segment, ...], answers: tuple[Answer, ...], reason: str) -> Performed:
    text = "".join(segment.text for segment in kept)
    tokens = tuple(token for answer in answers for token in answer.samples[0].tokens)
    logprobs = tuple(each for answer in answers for each in answer.samples[0].logprobs)
    found = msgspec.structs.replace(meta, text=text, tokens=tokens, logprobs=logprobs, stop=None, forced=())
    return Performed((msgspec.structs.replace(found, finish_reason="length") if reason == "length" else found,), (kept,), answers)
