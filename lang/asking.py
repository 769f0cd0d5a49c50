"""One question to a backend: a request out, its events in, counted against the run's budget.

`request.py` and `reasoning.py` ask with these; what the answers amount to is theirs.
"""

import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field

import msgspec

from branchpoint.constrained.spec import Constraint, Written
from branchpoint.lang.backends.base import Backend, GenerateRequest, Message
from branchpoint.lang.budget import Budget
from branchpoint.lang.chain import prompt_of, turns_of
from branchpoint.lang.errors import BackendError, OutOfBudget
from branchpoint.lang.ledger import Pending
from branchpoint.lang.result import SampleMeta
from branchpoint.lang.tools import ToolUse
from branchpoint.lang.variables import CallEntry
from branchpoint.runtime.errors import error_from
from branchpoint.runtime.messages import (
    Completed,
    Delta,
    Event,
    Failed,
    Hints,
    Ids,
    SampleFinished,
    Scored,
    Segment,
    Text,
    TokenLogprob,
    Usage,
)
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Answer", "Performed", "Sample", "ask", "hints_of", "ids_of", "messages_of", "segments_of"]


@dataclass(slots=True)
class Sample:
    """What has come of one sample."""

    deltas: list[Delta] = field(default_factory=list)
    finished: SampleFinished | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join([delta.text for delta in self.deltas])

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of all of it."""
        return tuple([token for delta in self.deltas for token in delta.tokens])

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """For each token, where they were asked for."""
        return tuple([logprob for delta in self.deltas for logprob in delta.logprobs])

    @property
    def forced(self) -> tuple[tuple[int, int], ...]:
        """The stretches of the text that the grammar left no choice about."""
        if not any(delta.forced for delta in self.deltas):
            return ()
        begins = itertools.accumulate((len(delta.text) for delta in self.deltas), initial=0)
        pairs = zip(begins, self.deltas, strict=False)
        return tuple((at + start, at + end) for at, delta in pairs for start, end in delta.forced)

    def meta(self) -> SampleMeta:
        """The whole sample. Raises BackendError where it never ended."""
        ended = self.finished
        if ended is None:
            raise BackendError("The backend completed a generation without finishing all of its samples.")
        known = (self.text, self.tokens, ended.reason, ended.stop, self.logprobs, ended.narrowed)
        return SampleMeta(*known, forced=self.forced)


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a generation: its request, its samples and the backend's last word."""

    request: GenerateRequest
    samples: tuple[Sample, ...]
    completed: Completed


@dataclass(frozen=True, slots=True)
class Performed:
    """What came of a gen, by sample: what is known of each, and what it puts into the ledger. `answers` are its requests'."""

    samples: tuple[SampleMeta, ...]
    kept: tuple[tuple[Segment, ...], ...]
    answers: tuple[Answer, ...]

    @property
    def usage(self) -> Usage:
        """The counts of all requests."""
        return sum((answer.completed.usage for answer in self.answers), Usage())


def ids_of(sample: SampleMeta) -> tuple[Segment, ...]:
    """What a sample, as it came, puts into the ledger."""
    # ids without text say nothing; they may be the end of the constant, made again to heal the seam
    if not sample.text:
        return ()
    return (Ids(sample.tokens, sample.text) if sample.tokens else Text(sample.text),)


async def ask(
    backend: Backend,
    entry: CallEntry,
    segments: tuple[Segment, ...],
    sampling: SamplingParams,
    constraint: Constraint | None,
    put: Callable[[Delta], None],
    messages: tuple[Message, ...] | None = None,
    tools: ToolUse | None = None,
    written: Written | None = None,
) -> Answer:
    """Ask for a generation on behalf of `entry`; `put` gets each delta that has text. Raises what failed, OutOfBudget too."""
    context = entry.place.context
    sampling, capped = _within_budget(sampling, context.budget)
    if constraint is None and sampling.close != "cut":  # an option of the whole run, which says nothing about free text
        sampling = msgspec.structs.replace(sampling, close="cut")
    request = GenerateRequest(
        id=context.request_id(),
        segments=segments,
        sampling=sampling,
        constraint=constraint,
        namespace=context.namespace,
        hints=hints_of(entry),
        messages=messages,
        tools=tools,
        written=written,
    )
    samples = [Sample() for _ in range(sampling.n)]
    completed = await _collect(backend, request, samples, entry, put)
    if capped and any(sample.finished is not None and sample.finished.reason == "length" for sample in samples):
        why = context.budget.over() or "The run's budget has no tokens left for it."
        raise OutOfBudget(why, partial="".join(entry.pieces.so_far()), usage=completed.usage)
    return Answer(request, tuple(samples), completed)


def _within_budget(sampling: SamplingParams, budget: Budget) -> tuple[SamplingParams, bool]:
    """No more tokens than the run may still compute, and whether that is less than was asked for."""
    left = budget.left
    if left is None:
        return sampling, False
    each = max(left // sampling.n, 1)
    if sampling.max_tokens is not None and sampling.max_tokens <= each:
        return sampling, False
    return msgspec.structs.replace(sampling, max_tokens=each, min_tokens=min(sampling.min_tokens, each)), True


async def _collect(
    backend: Backend, request: GenerateRequest, samples: list[Sample], entry: CallEntry, put: Callable[[Delta], None]
) -> Completed:
    events = backend.generate(request)
    budget, most, seen = entry.place.context.budget, request.sampling.max_tokens, 0
    async with aclosing(events) if isinstance(events, AsyncGenerator) else nullcontext():
        async for event in events:
            completed = _take(event, samples)
            if isinstance(event, Delta):
                seen += len(event.tokens)
                entry.seen += len(event.tokens)
                budget.spend(len(event.tokens), ends=most is not None and seen >= most * request.sampling.n)
                if event.text:
                    put(event)
            if completed is not None:
                usage = completed.usage
                budget.spend(usage.prefilled_tokens + usage.completion_tokens - seen, ends=True)
                return completed
    raise BackendError("The backend's events ended without a terminal one.")


def _take(event: Event, samples: list[Sample]) -> Completed | None:
    match event:
        case Delta() | SampleFinished() if not 0 <= event.index < len(samples):
            raise BackendError(f"The backend gave sample {event.index}; {len(samples)} were asked for.")
        case Delta():
            samples[event.index].deltas.append(event)
        case SampleFinished():
            samples[event.index].finished = event
        case Failed():
            raise error_from(event.kind, event.message, event.param, event.usage)
        case Completed():
            return event
        case Scored():
            raise BackendError("The backend answered a generation with scores.")
    return None


def hints_of(entry: CallEntry) -> Hints:
    """What the scheduler may know of a call."""
    place = entry.place
    returns = place.goes_on_after(entry.index)
    return Hints(program=place.context.id, path=place.path, siblings=place.siblings, returns=returns)


def segments_of(backend: Backend, entry: Pending) -> tuple[Segment, ...]:
    """The prompt of a call, as this backend takes it."""
    segments = prompt_of(entry.previous)
    if backend.capabilities.ids:
        return segments
    return tuple(Text(segment.text) if isinstance(segment, Ids) else segment for segment in segments)


def messages_of(entry: Pending) -> tuple[Message, ...] | None:
    """The prompt of a call as chat messages; None where the program has no roles."""
    if entry.previous is None or not entry.previous.in_chat:
        return None
    turns = [turn for turn in turns_of(entry.previous) if turn.role is not None]
    texts = ["".join(segment.text for segment in turn.content) for turn in turns]
    return tuple({"role": turn.role, "content": text} for turn, text in zip(turns, texts, strict=True))
