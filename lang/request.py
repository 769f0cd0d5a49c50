"""One call, from ledger entry to request to result: what is sent to the backend, and what its events amount to.

Called by the executor in its loop, once everything before the entry is settled.
"""

import contextlib
import random
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec

from branchpoint.constrained.spec import Constraint
from branchpoint.lang.backends.base import Backend, GenerateRequest, Message, ScoreRequest
from branchpoint.lang.budget import Budget
from branchpoint.lang.chain import prompt_of, turns_of
from branchpoint.lang.choices import Decision, ScoredOption, decide
from branchpoint.lang.errors import BackendError, NotSupported, OutOfBudget, ProgramMistake
from branchpoint.lang.expr import Gen, Select
from branchpoint.lang.options import derive_seed, merge, sampling_params
from branchpoint.lang.result import Meta, OptionMeta, SampleMeta
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

__all__ = ["generate", "select"]


@dataclass(slots=True)
class _Sample:
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: SampleFinished | None = None

    def meta(self) -> SampleMeta:
        ended = self.finished
        if ended is None:
            raise BackendError("The backend completed a generation without finishing all of its samples.")
        return SampleMeta("".join(self.texts), tuple(self.tokens), ended.reason, ended.stop, tuple(self.logprobs), ended.narrowed)


async def generate(backend: Backend, entry: CallEntry, expr: Gen, begin: float) -> Meta:
    """Perform a `gen`, stream its text into the entry's pieces, and give what it amounts to."""
    context = entry.place.context
    sampling = sampling_params(merge(context.options, expr.options))
    seed = sampling.seed if sampling.seed is not None else _seed(entry)
    sampling, capped = _within_budget(sampling_params(merge(context.options, expr.options, {"seed": seed})), context.budget)
    _check(backend, expr.constraint, logprobs=sampling.logprobs is not None or sampling.prompt_logprobs is not None)
    request = GenerateRequest(
        id=secrets.token_hex(8),
        segments=_segments(backend, entry),
        sampling=sampling,
        constraint=expr.constraint,
        namespace=context.namespace,
        hints=_hints(entry),
        messages=_messages(entry),
    )
    live = expr.pick if isinstance(expr.pick, int) else None
    if live is not None and not 0 <= live < sampling.n:
        raise ProgramMistake(f"pick must be in [0, {sampling.n}), got {live}.")
    samples = [_Sample() for _ in range(sampling.n)]
    completed = await _collect(backend, request, samples, entry, live)
    metas = tuple(sample.meta() for sample in samples)
    if capped and any(meta.finish_reason == "length" for meta in metas):
        why = context.budget.over() or "The run's budget has no tokens left for it."
        raise OutOfBudget(why, partial="".join(entry.pieces.so_far()), usage=completed.usage)
    picked = live if live is not None else _picked(expr, metas)
    if live is None:
        entry.pieces.put(metas[picked].text)
    chosen = metas[picked]
    if chosen.text:  # ids without text say nothing; they may be the end of the constant, made again to heal the seam
        entry.result = (Ids(chosen.tokens, chosen.text) if chosen.tokens else Text(chosen.text),)
    return Meta(
        chosen.text,
        chosen.tokens,
        chosen.finish_reason,
        chosen.stop,
        chosen.logprobs,
        chosen.narrowed,
        metas,
        completed.usage,
        time.perf_counter() - begin,
        seed,
        completed.prompt_logprobs,
    )


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
    backend: Backend, request: GenerateRequest, samples: list[_Sample], entry: CallEntry, live: int | None
) -> Completed:
    events = backend.generate(request)
    budget, most = entry.place.context.budget, request.sampling.max_tokens
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(events, AsyncGenerator):
            stack.push_async_callback(events.aclose)
        async for event in events:
            completed = _take(event, samples)
            if isinstance(event, Delta):
                entry.seen += len(event.tokens)
                budget.spend(len(event.tokens), ends=most is not None and entry.seen >= most * request.sampling.n)
                if event.index == live and event.text:
                    entry.pieces.put(event.text)
            if completed is not None:
                usage = completed.usage
                budget.spend(usage.prefilled_tokens + usage.completion_tokens - entry.seen, ends=True)
                return completed
    raise BackendError("The backend's events ended without a terminal one.")


def _take(event: Event, samples: list[_Sample]) -> Completed | None:
    match event:
        case Delta():
            sample = samples[event.index]
            sample.texts.append(event.text)
            sample.tokens.extend(event.tokens)
            sample.logprobs.extend(event.logprobs)
        case SampleFinished():
            samples[event.index].finished = event
        case Failed():
            raise error_from(event.kind, event.message, event.param, event.usage)
        case Completed():
            return event
        case Scored():
            raise BackendError("The backend answered a generation with scores.")
    return None


def _picked(expr: Gen, metas: tuple[SampleMeta, ...]) -> int:
    picked = expr.pick([meta.text for meta in metas]) if callable(expr.pick) else expr.pick
    if not isinstance(picked, int) or not 0 <= picked < len(metas):
        raise ProgramMistake(f"pick must give an index in [0, {len(metas)}), got {picked!r}.")
    return picked


async def select(backend: Backend, entry: CallEntry, expr: Select, begin: float) -> Meta:
    """Perform a `select`: score the options, decide, and go on from the chosen one."""
    if not backend.capabilities.score:
        raise NotSupported("This backend can't score options, so select is not possible on it; use gen(choices=, method='mask').")
    method = expr.method
    common = {
        "segments": _segments(backend, entry),
        "options": expr.choices,
        "namespace": entry.place.context.namespace,
        "hints": _hints(entry),
        "messages": _messages(entry),
    }
    scored = await backend.score(ScoreRequest(id=secrets.token_hex(8), with_end=method.with_end, **common))  # type: ignore[arg-type]  # one dict for both requests
    without = None
    if method.unconditional:
        without = await backend.score(ScoreRequest(id=secrets.token_hex(8), unconditional=True, **common))  # type: ignore[arg-type]  # as above
    options = _options(expr, scored, without)
    decision = decide(method, options)
    seed = expr.seed if expr.seed is not None else _seed(entry)
    choice = _sampled(decision, expr.temperature, seed) if expr.temperature > 0 else decision.choice
    text = expr.choices[choice]
    entry.result = (Text(text),)
    entry.pieces.put(text)
    metas = tuple(
        OptionMeta(option.text, option.logprobs, score, probability, option.end, option.unconditional)
        for option, score, probability in zip(options, decision.scores, decision.probabilities, strict=True)
    )
    sample = SampleMeta(text)
    seconds = time.perf_counter() - begin
    usage = scored.usage if without is None else _sum(scored.usage, without.usage)
    entry.place.context.budget.spend(usage.prefilled_tokens, ends=True)
    return Meta(text, (), "stop", None, (), (), (sample,), usage, seconds, seed, (), metas, method.name)


def _options(expr: Select, scored: Scored, without: Scored | None) -> list[ScoredOption]:
    rows = scored.logprobs
    if len(rows) != len(expr.choices) or (without is not None and len(without.logprobs) != len(rows)):
        raise BackendError(f"The backend scored {len(rows)} options, {len(expr.choices)} were asked for.")
    ends: list[float | None] = [None] * len(rows)
    if expr.method.with_end:
        ends = [row[-1] for row in rows]
        rows = tuple(row[:-1] for row in rows)
    bare = without.logprobs if without is not None else [None] * len(rows)
    return [ScoredOption(*fields) for fields in zip(expr.choices, rows, ends, bare, strict=True)]


def _sum(first: Usage, second: Usage) -> Usage:
    return Usage(*(getattr(first, name) + getattr(second, name) for name in Usage.__struct_fields__))


def _sampled(decision: Decision, temperature: float, seed: int) -> int:
    best = max(decision.probabilities)
    weights = [(probability / best) ** (1 / temperature) for probability in decision.probabilities]
    return random.Random(seed).choices(range(len(weights)), weights)[0]


def _seed(entry: CallEntry) -> int:
    context = entry.place.context
    return derive_seed(context.seed, context.program, *entry.place.path, entry.index)


def _hints(entry: CallEntry) -> Hints:
    place = entry.place
    return Hints(program=place.context.id, path=place.path, siblings=place.siblings)


def _segments(backend: Backend, entry: CallEntry) -> tuple[Segment, ...]:
    segments = prompt_of(entry.previous)
    if backend.capabilities.ids:
        return segments
    return tuple(Text(segment.text) if isinstance(segment, Ids) else segment for segment in segments)


def _messages(entry: CallEntry) -> tuple[Message, ...] | None:
    turns = [turn for turn in turns_of(entry.previous) if turn.role is not None]
    if not turns:
        return None
    texts = ["".join(segment.text for segment in turn.content) for turn in turns]
    return tuple({"role": turn.role, "content": text} for turn, text in zip(turns, texts, strict=True))


def _check(backend: Backend, constraint: Constraint | None, *, logprobs: bool) -> None:
    capabilities = backend.capabilities
    tag = constraint.__struct_config__.tag if constraint is not None else None
    if tag is not None and tag not in capabilities.constraints:
        known = ", ".join(sorted(capabilities.constraints)) or "none"
        raise NotSupported(f"This backend can't hold output to a {tag}; it can: {known}.")
    if logprobs and not capabilities.logprobs:
        raise NotSupported("This backend reports no logprobs; leave return_logprob out.")
