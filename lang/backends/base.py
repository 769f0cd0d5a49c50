"""The seam between the language and whatever runs a model: `generate`, `score`, `render`, `close`.

The executor calls these from its one event loop. Segments go down as token ids wherever ids are known, so that a backend
which understands ids reuses every token of KV; one that doesn't says so before anything is sent.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard, runtime_checkable

import msgspec

from branchpoint.constrained.spec import Constraint, Written
from branchpoint.lang.tools import ToolUse
from branchpoint.runtime.messages import Event, Hints, Ids, Scored, Segment, Text
from branchpoint.runtime.sampling import SamplingParams

__all__ = [
    "Backend",
    "Capabilities",
    "Ending",
    "GenerateRequest",
    "Ids",
    "Measuring",
    "Message",
    "ScoreRequest",
    "Seeded",
    "Segment",
    "Text",
    "Writing",
    "is_ending",
    "is_seeded",
    "is_writing",
]

Message = Mapping[str, object]
"""A chat message: `role`, `content`, and what the model's chat template knows besides."""


class GenerateRequest(msgspec.Struct, frozen=True):
    """Generate after `segments`. `heal`: the output may finish the last constant's last token (see LANGUAGE S1).

    `messages` is the same prompt as chat messages, for backends that only know chat; None where the program has no roles. `tools`
    are offered to backends that call tools themselves: a call stands in the text as `lang.tools` writes it. `written` is what the
    prompt's end has of the sentence that `constraint` is about, None where it begins with the output.
    """

    id: str
    segments: tuple[Segment, ...]
    sampling: SamplingParams = SamplingParams()
    constraint: Constraint | None = None
    heal: bool = True
    namespace: str = ""
    hints: Hints = Hints()
    messages: tuple[Message, ...] | None = None
    tools: ToolUse | None = None
    written: Written | None = None


class ScoreRequest(msgspec.Struct, frozen=True):
    """Score each of `options` as the continuation of `segments`.

    The last constant text and the option are tokenised together; only tokens that carry bytes of the option count.
    `with_end` adds, as the last logprob of each option, that of the model's end token after it. `unconditional` scores the
    options' tokens after nothing but the model's own beginning.
    """

    id: str
    segments: tuple[Segment, ...]
    options: tuple[str, ...]
    with_end: bool = False
    unconditional: bool = False
    namespace: str = ""
    hints: Hints = Hints()
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do, asked before anything is sent. `constraints` are the tags of `constrained.spec` that it enforces.

    `tools`: it is told of tools and calls them itself; others are asked for a call in two requests. `stretches`: it goes on with
    sentences that are begun (`GenerateRequest.written`).
    """

    ids: bool = True
    score: bool = True
    logprobs: bool = True
    tools: bool = False
    stretches: bool = False
    constraints: frozenset[str] = field(default_factory=lambda: frozenset({"json_schema", "regex", "choice", "ebnf"}))


class Backend(Protocol):
    """Runs requests. All methods are called from one event loop; cancelling the task that waits aborts the request.

    A backend that keeps something bound to its loop (connections) inherits `lang.dispatcher.Dispatched`, and has the same loop
    for all runs; any other gets a new one with each run.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Events of one generation; the last is `Completed`. Raises what failed (never yields `Failed`)."""

    async def score(self, request: ScoreRequest) -> Scored:
        """Log-probabilities, one tuple for each option."""

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The chat template's text for these messages. Raises where the model has no template."""

    async def close(self) -> None:
        """Give back what the backend holds; running requests fail."""


@runtime_checkable
class Measuring(Protocol):
    """A backend that can tell how long a prompt is without running it."""

    async def measure(self, segments: Sequence[Segment]) -> tuple[int, int]:
        """The number of tokens of these segments, and how many the model's context has."""


class Ending(Protocol):
    """A backend that keeps something for a program while it runs: the cached prefixes of its calls, say."""

    def end_program(self, program: str, namespace: str = "") -> None:
        """The run that `Hints.program` names in `namespace` has ended. Called from any thread; must neither block nor raise."""


class Seeded(Protocol):
    """A backend that plays a run again: without a seed of its own, a run on it begins from that run's."""

    @property
    def seed(self) -> int:
        """The seed of the run that is played."""


class Writing(Protocol):
    """A backend that knows what its chat template does with the contents of messages."""

    def writes_whole(self, contents: Sequence[str]) -> bool:
        """Whether these contents stand in a rendering as they are, and all else in it depends at most on which are blank."""


def is_ending(backend: Backend) -> TypeGuard[Ending]:
    """Whether it is an `Ending`. Asked for each run: `isinstance` with a protocol takes a hundred times as long."""
    return hasattr(backend, "end_program")


def is_seeded(backend: Backend) -> TypeGuard[Seeded]:
    """Whether it is a `Seeded`."""
    return hasattr(backend, "seed")


def is_writing(backend: Backend) -> TypeGuard[Writing]:
    """Whether it is a `Writing`."""
    return hasattr(backend, "writes_whole")
