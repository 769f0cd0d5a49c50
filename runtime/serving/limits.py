"""What one request may ask for: how many outputs, what size of options, which token ids. Asked by the gateway."""

from collections.abc import Sequence
from typing import Final

import msgspec

from branchpoint.runtime.messages import Call, ModelInfo, ScoreCall
from branchpoint.runtime.serving.errors import bad_request, clip

__all__ = ["check_amount", "check_ids", "limits_of"]

MAX_SAMPLES: Final = 4096
MAX_OPTION_BYTES: Final = 16 * 2**20


def check_amount(calls: tuple[Call | ScoreCall, ...]) -> None:
    """Refuse what would be many requests in one, and options that can't travel. Calls of one request share their options."""
    samples = sum(call.sampling.n if isinstance(call, Call) else len(call.continuations) for call in calls)
    if samples > MAX_SAMPLES:
        raise bad_request(f"The request asks for {samples} outputs at once; at most {MAX_SAMPLES} can be had. Split it.", "n")
    total, sizes = 0, dict[int, int]()
    for call in calls:
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
