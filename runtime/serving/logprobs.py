"""Log-probabilities in the three shapes that clients know: OpenAI's chat and text completions, and SGLang's.

JSON has no infinity: anything below -9999 is written as -9999.
"""

import codecs
from collections.abc import Iterable, Sequence

import msgspec

from branchpoint.runtime.messages import Completed, Delta, Event, TokenLogprob
from branchpoint.runtime.serving.wire import Json

__all__ = [
    "LOWEST",
    "chat_logprobs",
    "completion_logprobs",
    "finite_event",
    "native_logprobs",
    "native_top_logprobs",
    "prompt_logprobs",
]

LOWEST = -9999.0


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LOWEST)


def finite_event(event: Event) -> Event:
    """The runtime's own event, for JSON."""
    if isinstance(event, Delta) and event.logprobs:
        return msgspec.structs.replace(event, logprobs=tuple(map(_finite_token, event.logprobs)))
    if isinstance(event, Completed) and event.prompt_logprobs:
        return msgspec.structs.replace(event, prompt_logprobs=tuple(map(_finite_token, event.prompt_logprobs)))
    return event


def _finite_token(entry: TokenLogprob) -> TokenLogprob:
    top = tuple((token, max(logprob, LOWEST), text) for token, logprob, text in entry.top)
    return TokenLogprob(entry.token, _finite(entry.logprob), entry.text, top)


def _name(text: bytes) -> str:
    """A token as a string; one that isn't a whole UTF-8 text is shown by its bytes, as OpenAI does."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def chat_logprobs(entries: Iterable[TokenLogprob]) -> Json:
    """`choices[].logprobs` of a chat completion: the chosen tokens, each with its alternatives."""

    def shown(text: bytes, logprob: float | None) -> Json:
        return {"token": text.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(text)}

    return {
        "content": [
            shown(entry.text, entry.logprob) | {"top_logprobs": [shown(text, logprob) for _, logprob, text in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def completion_logprobs(entries: Sequence[TokenLogprob], offset: int = 0) -> Json:
    """`choices[].logprobs` of a text completion; `offset` is where the first token starts, in characters of the text."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offsets = list[int]()
    for entry in entries:
        offsets.append(offset)
        offset += len(decoder.decode(entry.text))
    return {
        "tokens": [_name(entry.text) for entry in entries],
        "token_logprobs": [_finite(entry.logprob) for entry in entries],
        "top_logprobs": [_alternatives(entry) for entry in entries],
        "text_offset": offsets,
    }


def _alternatives(entry: TokenLogprob) -> dict[str, float | None] | None:
    if entry.logprob is None:
        return None
    return {_name(entry.text): _finite(entry.logprob)} | {_name(text): _finite(logprob) for _, logprob, text in entry.top}


def prompt_logprobs(entries: Iterable[TokenLogprob]) -> list[Json | None]:
    """vLLM's `prompt_logprobs`: for each token of the prompt it and its best alternatives by id; null for the first.

    `rank` counts from the best, 1; it is null where the token is none of the alternatives that were asked for.
    """
    told = list[Json | None]()
    for entry in entries:
        if entry.logprob is None:
            told.append(None)
            continue
        best = {token: (logprob, rank, text) for rank, (token, logprob, text) in enumerate(entry.top, 1)}
        known: dict[int, tuple[float, int | None, bytes]] = {entry.token: (entry.logprob, None, entry.text), **best}
        told.append(
            {
                str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": _name(text)}
                for token, (logprob, rank, text) in known.items()
            }
        )
    return told


def native_logprobs(entries: Iterable[TokenLogprob], *, text: bool) -> list[list[object]]:
    """SGLang's `[logprob, id, text | null]` for each token."""
    return [[_finite(entry.logprob), entry.token, _name(entry.text) if text else None] for entry in entries]


def native_top_logprobs(entries: Iterable[TokenLogprob], *, text: bool) -> list[list[list[object]] | None]:
    """SGLang's list of `[logprob, id, text | null]` alternatives for each token; null where there are none."""
    return [
        [[_finite(logprob), token, _name(name) if text else None] for token, logprob, name in entry.top] or None
        for entry in entries
    ]
