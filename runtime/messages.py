"""What travels to and from an engine: calls in, events out. One type, in-process and over zmq alike.

A call is validated before it is built. Each accepted call ends with exactly one terminal event (`Completed`, `Scored` or
`Failed`), whatever happens; before it come any number of `Delta`s and, for each sample, one `SampleFinished`.
"""

import itertools
import math
from typing import Literal

import msgspec

from branchpoint.constrained.spec import Constraint, Narrowing, Written
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.sampling import SamplingParams

__all__ = [
    "MAX_PROGRAM_NAME",
    "OWNER_END",
    "Abort",
    "Call",
    "Completed",
    "Delta",
    "DrafterStats",
    "Event",
    "Failed",
    "FinishReason",
    "Hints",
    "Ids",
    "ModelInfo",
    "ProgramEnded",
    "SampleFinished",
    "ScoreCall",
    "Scored",
    "Segment",
    "Text",
    "TokenLogprob",
    "Usage",
]

ENOUGH_GUESSES = 64
"""Guesses after which a verdict is given."""
POOR_GUESSES = 0.2

MAX_PROGRAM_NAME = 256
FinishReason = Literal["stop", "length", "abort", "error"]

OWNER_END = "\x1f"
"""What stands in a namespace behind the name of the caller whose it is, where a server knows its callers."""


class Hints(msgspec.Struct, frozen=True):
    """What the language knows about a call; soft, the scheduler may use or ignore all of it.

    `program` names one run of a program, not its text: calls of one run, all in one namespace, belong together, until
    `ProgramEnded` says that no more come. `path` leads to the branch, one of `siblings`. With `returns` the branch goes on where
    this call ends, after about `return_seconds` (a tool call, a user's turn). `ended` names programs of the call's namespace that
    have ended. Raises InvalidRequest where a number makes no sense. A server takes names of up to `MAX_PROGRAM_NAME` characters.
    """

    program: str = ""
    path: tuple[int, ...] = ()
    siblings: int = 1
    returns: bool = False
    return_seconds: float = 0.0
    priority: int = 0
    ended: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.return_seconds < math.inf:
            raise _refused("return_seconds must be a number of seconds from now", self.return_seconds)
        if self.siblings < 1:
            raise _refused("siblings must be at least 1", self.siblings)


def _refused(expected: str, came: object) -> InvalidRequest:
    return InvalidRequest(f"hints: {expected}, got {came}.", param="hints")


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Constant text. `special` is true for a chat template's own text only: there, and only there, special tokens are parsed."""

    text: str
    special: bool = False


class Ids(msgspec.Struct, frozen=True, tag="ids"):
    """Tokens that a model made (or that a caller gave), with their text. They are never tokenised again."""

    tokens: tuple[int, ...]
    text: str = ""


Segment = Text | Ids


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Generate from `prompt` (token ids, at least one).

    `heal` are bytes that were cut from the prompt's end, so that the first tokens may be chosen afresh: the output must begin
    with them, and they are not part of the reported text. `namespace` decides whose KV may be reused; `adapter` names the adapter
    that computes the call, none where it is empty: what one has computed is never reused with another. `written` is what the
    prompt's end has of the sentence that `constraint` is about, None where it begins with the output.
    """

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    heal: bytes = b""
    namespace: str = ""
    hints: Hints = Hints()
    adapter: str = ""
    written: Written | None = None

    @property
    def owner(self) -> str:
        """The caller whose call it is; empty where nobody is told apart."""
        return self.namespace.partition(OWNER_END)[0] if OWNER_END in self.namespace else ""


class ScoreCall(msgspec.Struct, frozen=True, tag="score"):
    """The log-probability of each token of each continuation, given `prompt` and the continuation's earlier tokens.

    Or, with `pooling` and no continuation, one vector of the prompt: its tokens' hidden states' mean, or the last one's.
    """

    id: str
    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]
    namespace: str = ""
    hints: Hints = Hints()
    pooling: Literal["", "mean", "last"] = ""
    adapter: str = ""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End the call of this id at the next step; unknown and finished ids are ignored."""

    id: str


class ProgramEnded(msgspec.Struct, frozen=True, tag="program_ended"):
    """The run that `Hints.program` names in calls of `namespace` will send no more of them; unknown ones are ignored."""

    program: str
    namespace: str = ""


class TokenLogprob(msgspec.Struct, frozen=True):
    """One token with its natural-log probability (None for the first token of a prompt) and the best alternatives."""

    token: int
    logprob: float | None
    text: bytes
    top: tuple[tuple[int, float, bytes], ...] = ()


class DrafterStats(msgspec.Struct, frozen=True):
    """What guesses of one drafter came to. `by_place` holds, for each place in a draft, how many guesses were verified and how
    many were right (the last place stands for all behind it). `failure` says why it is asked no more. As text: one line.
    """

    name: str
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_place: tuple[tuple[int, int], ...] = ()
    failure: str | None = None

    @property
    def is_poor(self) -> bool:
        """Whether so few guesses were right that they cost more than they save."""
        return self.drafted >= ENOUGH_GUESSES and self.accepted < POOR_GUESSES * self.drafted

    def __add__(self, other: "DrafterStats") -> "DrafterStats":
        places = itertools.zip_longest(self.by_place, other.by_place, fillvalue=(0, 0))
        return DrafterStats(
            self.name,
            self.drafts + other.drafts,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            tuple((tested + others, right + more) for (tested, right), (others, more) in places),
            self.failure or other.failure,
        )

    def __str__(self) -> str:
        held = f"{self.name}: {self.accepted} of {self.drafted} guesses held ({self.accepted / max(1, self.drafted):.0%})"
        places = " ".join(f"{right / tested:.0%}" for tested, right in self.by_place if tested)
        return f"{held}, by position {places}" if places else held


class Usage(msgspec.Struct, frozen=True):
    """Exact counts of one call. Prompt tokens count once; the others are summed over its samples. Times in seconds.

    prompt = cached + prefilled at admission (a preempted sequence's recomputed tokens are in `prefilled`, on top);
    completion = decoded + forced + accepted drafts; tokens that only repeat healed bytes belong to the prompt and aren't counted.
    The prompt of a ScoreCall includes its continuations; what they share, and their last tokens, need no computing: cached.
    `grammar_seconds` is the wait for the grammar, part of `queue_seconds`. `drafters` tell of those whose guesses were verified.
    Usages are added field by field.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    queue_seconds: float = 0.0
    mask_seconds: float = 0.0
    grammar_seconds: float = 0.0
    drafters: tuple[DrafterStats, ...] = ()

    def __add__(self, other: "Usage") -> "Usage":
        added = {name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        merged: dict[str, DrafterStats] = {}
        for each in (*self.drafters, *other.drafters):
            merged[each.name] = merged[each.name] + each if each.name in merged else each
        return Usage(**added | {"drafters": tuple(merged.values())})


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """New output of sample `index`: final text (never taken back) and the tokens that became certain with it.

    `forced` are the stretches of `text`, from one character up to another, that the grammar left no choice about.
    """

    id: str
    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    forced: tuple[tuple[int, int], ...] = ()


class SampleFinished(msgspec.Struct, frozen=True, tag="sample"):
    """Sample `index` ended. `stop` is the string or token id that ended it, None for the model's own end or a length."""

    id: str
    index: int
    reason: FinishReason
    stop: str | int | None = None
    narrowed: tuple[Narrowing, ...] = ()
    completion_tokens: int = 0


class Completed(msgspec.Struct, frozen=True, tag="completed"):
    """Terminal: all samples of a `Call` ended."""

    id: str
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


class Scored(msgspec.Struct, frozen=True, tag="scored"):
    """Terminal: the answer to a `ScoreCall`, aligned with its continuations. `vector` is what `pooling` asked for."""

    id: str
    logprobs: tuple[tuple[float, ...], ...]
    usage: Usage
    vector: tuple[float, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Terminal: the call failed; `kind` is one of `runtime.errors`' kinds, `usage` what it had cost until then."""

    id: str
    kind: str
    message: str
    param: str | None = None
    usage: Usage = Usage()


Event = Delta | SampleFinished | Completed | Scored | Failed


class ModelInfo(msgspec.Struct, frozen=True):
    """What a client must know of the model behind an engine."""

    name: str
    path: str
    architecture: str
    vocabulary_size: int
    context_length: int
    num_pages: int
    page_size: int
    eos_token_ids: tuple[int, ...]
    sampling_defaults: dict[str, float | int] = {}
    hidden_size: int = 0
