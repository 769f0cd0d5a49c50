"""What one request may ask for: how many outputs, what size of options, which token ids. Asked by the gateway."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from branchpoint.constrained.spec import Constraint
from branchpoint.runtime.messages import MAX_PROGRAM_NAME, Call, ModelInfo, ScoreCall
from branchpoint.runtime.serving.errors import bad_request, clip
from branchpoint.runtime.serving.options import ServerOptions

__all__ = ["check_amount", "check_calls", "check_ids", "check_program_names", "constraint_bytes", "limits_of"]

MAX_SAMPLES: Final = 4096
MAX_OPTION_BYTES: Final = 16 * 2**20


def check_calls(calls: Sequence[Call | ScoreCall], allowed: ServerOptions) -> None:
    """Refuse what this server doesn't allow. Raises InvalidRequest naming the option (nothing, where it is the constraint)."""
    sizes = dict[int, int]()  # calls of one request share their constraint
    for call in calls:
        if isinstance(call, Call):
            _check_call(call, allowed, sizes)


def check_amount(calls: Sequence[Call | ScoreCall]) -> None:
    """Refuse what would be many requests in one, and options that can't travel. Calls of one request share their options."""
    samples = sum(call.sampling.n if isinstance(call, Call) else len(call.continuations) for call in calls)
    if samples > MAX_SAMPLES:
        raise bad_request(f"The request asks for {samples} outputs at once; at most {MAX_SAMPLES} can be had. Split it.", "n")
    total, sizes = 0, dict[int, int]()
    for call in calls:
        check_program_names(call.hints.program, *call.hints.ended)
        options = (call.sampling, call.constraint, call.hints) if isinstance(call, Call) else (call.hints,)
        if id(options[0]) not in sizes:
            try:
                sizes[id(options[0])] = len(msgspec.msgpack.encode(options))
            except OverflowError as error:
                raise bad_request("The request holds an integer that 64 bits can't.") from error
        total += sizes[id(options[0])]
    if total > MAX_OPTION_BYTES:
        raise bad_request(
            f"The options of {len(calls)} prompts take {total} bytes; at most {MAX_OPTION_BYTES} can be had. Split it."
        )


def check_program_names(*names: str) -> None:
    """Refuse names of programs that are no names: the engine keeps them. Raises InvalidRequest."""
    for name in names:
        if len(name) > MAX_PROGRAM_NAME:
            raise bad_request(f"A program's name has at most {MAX_PROGRAM_NAME} characters, got {clip(name, 40)!r}.", "hints")


def _check_call(call: Call, allowed: ServerOptions, sizes: dict[int, int]) -> None:
    sampling = call.sampling
    if sampling.n > allowed.max_n:
        raise bad_request(f"n must be at most {allowed.max_n} on this server, got {sampling.n}.", "n")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(sampling, name)
        if count is not None and count > allowed.max_logprobs:
            raise bad_request(f"{name} must be at most {allowed.max_logprobs} on this server, got {count}.", name)
    if call.constraint is not None:
        key = id(call.constraint)
        size = sizes[key] if key in sizes else sizes.setdefault(key, constraint_bytes(call.constraint))
        if size > allowed.max_schema_bytes:
            raise bad_request(f"The constraint has {size} bytes; this server takes at most {allowed.max_schema_bytes}.")


def constraint_bytes(constraint: Constraint) -> int:
    """How long the text of a constraint is."""
    texts = (getattr(constraint, name) for name in constraint.__struct_fields__)
    return sum(len(text.encode("utf-8", "replace")) for value in texts for text in _texts(value))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _texts(getattr(value, name))


def limits_of(info: ModelInfo) -> str:
    """What bounds a request, in words that clients of other servers look for."""
    context = f"This model's maximum context length is {info.context_length} tokens"
    pool = info.num_pages * info.page_size
    return f"{context}." if pool >= info.context_length else f"{context}, and this server's KV pool holds {pool}."


def check_ids(tokens: Sequence[int], vocabulary_size: int, param: str) -> None:
    """Raise InvalidRequest where a token id is none of the model's."""
    for token in tokens:
        if not 0 <= token < vocabulary_size:
            raise bad_request(f"{param} holds token id {clip(str(token), 40)}; ids must be in [0, {vocabulary_size}).", param)
