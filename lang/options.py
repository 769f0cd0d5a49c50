"""What may be asked of sampling, and where it is asked: at a `gen`, at a `run`, in a `RunConfig`. The nearer one wins.

One list of names (`SamplingOptions`) serves all three; `sampling_params` turns the merged options into what travels.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypedDict, Unpack, cast

import msgspec

from branchpoint.lang.backends.source import BackendLike
from branchpoint.lang.errors import ProgramMistake
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.sampling import Close, SamplingParams

__all__ = ["Pick", "RunConfig", "SamplingOptions", "derive_seed", "merge", "merged_params", "option_names", "sampling_params"]

Pick = int | Callable[[list[str]], int]
"""Which of `n` samples the state goes on from: an index, or a function from the texts to one."""


class SamplingOptions(TypedDict, total=False):
    """Options of a generation; what is left out comes from further out, or from `SamplingParams`.

    `max_new_tokens` is another name of `max_tokens`. `return_logprob` reports each token's logprob, `top_logprobs_num` the best
    alternatives too, `logprob_start_len` those of the prompt from that token on (-1: none). Texts of logprobs are always there.
    `top_k` 0 or -1 is off. `close` is what becomes of a typed or constrained value that nears `max_tokens`: it is cut, or steered
    to the shortest end that is known, so that it is whole.
    """

    max_tokens: int | None
    max_new_tokens: int | None
    close: Close
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    n: int
    logprobs: int | None
    return_logprob: bool
    top_logprobs_num: int
    logprob_start_len: int
    return_text_in_logprobs: bool


_OPTION_NAMES = frozenset(SamplingOptions.__annotations__)


class RunConfig:
    """What holds for a whole run: sampling options, the backend, and how much happens at once.

    `max_concurrency` is the one limit on calls that are in flight at the same time, over all programs of a batch.
    `namespace` separates reuse: prefixes are shared only within one.
    `max_total_tokens` is what a run may compute, over all its forks: output tokens as they come, those of a prompt that had to
    be prefilled once its call is over. `deadline` is how many seconds it may take. A call that meets either end is cut, and
    reading it raises OutOfBudget, an Incomplete. Immutable. Raises InvalidRequest or ProgramMistake.
    """

    __slots__ = ("backend", "deadline", "max_concurrency", "max_total_tokens", "namespace", "options")

    backend: BackendLike | None
    namespace: str
    max_concurrency: int
    max_total_tokens: int | None
    deadline: float | None
    options: SamplingOptions

    def __init__(
        self,
        *,
        backend: BackendLike | None = None,
        namespace: str = "",
        max_concurrency: int = 256,
        max_total_tokens: int | None = None,
        deadline: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> None:
        if max_concurrency < 1:
            raise InvalidRequest(f"max_concurrency must be at least 1, got {max_concurrency}.", param="max_concurrency")
        if max_total_tokens is not None and max_total_tokens < 0:
            raise InvalidRequest(f"max_total_tokens must be at least 0, got {max_total_tokens}.", param="max_total_tokens")
        if deadline is not None and not 0 <= deadline < math.inf:
            raise InvalidRequest(f"deadline must be a number of seconds from the run's start, got {deadline}.", param="deadline")
        sampling_params(options)
        fields = {"backend": backend, "namespace": namespace, "max_concurrency": max_concurrency}
        for name, value in {**fields, "max_total_tokens": max_total_tokens, "deadline": deadline}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "options", merge(options))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"A RunConfig is immutable; make a new one to change {name!r}.")


def option_names() -> frozenset[str]:
    """The names of sampling options."""
    return _OPTION_NAMES


def merge(*layers: SamplingOptions) -> SamplingOptions:
    """The layers laid over one another, the last wins; the caller's own lists and dicts aren't kept."""
    merged: dict[str, object] = {}
    for layer in layers:
        given = dict(layer)
        if "max_new_tokens" in given:
            other = given.pop("max_new_tokens")
            if given.setdefault("max_tokens", other) != other:
                raise ProgramMistake(f"max_tokens={given['max_tokens']!r} and max_new_tokens={other!r} are one option; give one.")
        merged.update(given)
    for name in ("stop", "stop_token_ids"):
        if name in merged and isinstance(given_list := merged[name], Iterable) and not isinstance(given_list, str):
            merged[name] = tuple(given_list)
    return cast(SamplingOptions, merged)


def sampling_params(options: SamplingOptions) -> SamplingParams:
    """What travels, from options. Raises ProgramMistake for unknown names, InvalidRequest naming a bad value."""
    return merged_params(merge(options))


def merged_params(merged: SamplingOptions) -> SamplingParams:
    """As `sampling_params`, of what `merge` gave."""
    given: dict[str, object] = dict(merged)
    for name in given.keys() - option_names():
        raise ProgramMistake(f"{name!r} is not an option of sampling; known are {', '.join(sorted(option_names()))}.")
    if isinstance(stop := given.get("stop"), str):
        given["stop"] = (stop,)
    if isinstance(bias := given.get("logit_bias"), Mapping):
        given["logit_bias"] = _biases(bias)
    if given.get("top_k") == -1:
        given["top_k"] = 0
    given.pop("return_text_in_logprobs", None)
    top = given.pop("top_logprobs_num", 0)
    start = given.pop("logprob_start_len", -1)
    if given.pop("return_logprob", False):
        given.setdefault("logprobs", top)
        if isinstance(start, int) and start >= 0:
            given |= {"prompt_logprobs": top, "prompt_logprobs_start": start}
    try:
        return msgspec.convert(given, SamplingParams)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        raise InvalidRequest(f"A sampling option has the wrong type: {error}.") from None


def _biases(given: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    try:
        return tuple(sorted((int(token), float(value)) for token, value in given.items()))
    except (TypeError, ValueError):
        told = f"logit_bias must give a number for each token id, got {dict(given)!r:.80}."
        raise InvalidRequest(told, param="logit_bias") from None


def derive_seed(seed: int, *parts: object) -> int:
    """A seed in [0, 2**63) that depends on `seed` and `parts` only, the same on every machine."""
    text = "\x1f".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
