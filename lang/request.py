"""One call, from ledger entry to request to result: what is sent to the backend, and what its events amount to.

Called by the executor in its loop, once everything before the entry is settled.
"""

import random
import time
from dataclasses import replace

import msgspec

from branchpoint.constrained.spec import Constraint
from branchpoint.lang.asking import Performed, ask, hints_of, ids_of, messages_of, segments_of
from branchpoint.lang.backends.base import Backend, ScoreRequest
from branchpoint.lang.calling import call_tools
from branchpoint.lang.choices import Decision, ScoredOption, decide
from branchpoint.lang.errors import BackendError, NotSupported, ProgramMistake
from branchpoint.lang.expr import Gen, Select
from branchpoint.lang.masked import written
from branchpoint.lang.options import derive_seed, merge, merged_params
from branchpoint.lang.reasoning import reason
from branchpoint.lang.result import Meta, OptionMeta, SampleMeta
from branchpoint.lang.stretch import Stretch
from branchpoint.lang.variables import CallEntry
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Delta, Scored, Text
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["generate", "select"]


async def generate(backend: Backend, entry: CallEntry, expr: Gen, begin: float) -> Meta:
    """Perform a `gen`, stream its text into the entry's pieces, and give what it amounts to."""
    context = entry.place.context
    options = merge(context.options, expr.options)
    if options.get("seed") is None:
        options["seed"] = _seed(entry)
    sampling = merged_params(options)
    held_to = expr.constraint if backend.capabilities.tools else expr.held_to
    held_to = held_to if entry.stretch is None else entry.stretch.constraint
    _check(backend, held_to, logprobs=sampling.logprobs is not None or sampling.prompt_logprobs is not None)
    live = expr.pick if isinstance(expr.pick, int) else None
    if live is not None and not 0 <= live < sampling.n:
        raise ProgramMistake(f"pick must be in [0, {sampling.n}), got {live}.")
    if expr.reasoning is not None:
        done = await reason(backend, entry, expr, sampling, live)
    elif expr.tools is not None:
        done = await call_tools(backend, entry, expr, sampling, segments_of(backend, entry))
    else:
        done = await _plain(backend, entry, expr, sampling, live)
    picked = live if live is not None else _picked(expr, done.samples)
    chosen = done.samples[picked]
    entry.result = done.kept[picked]
    if live is None:
        entry.show(chosen, "".join(segment.text for segment in entry.result))
    if expr.staged or entry.stretch is not None:
        entry.answers = done.answers
    return Meta(
        chosen.text,
        chosen.tokens,
        chosen.finish_reason,
        chosen.stop,
        chosen.logprobs,
        chosen.narrowed,
        done.samples,
        done.usage,
        time.perf_counter() - begin,
        sampling.seed,
        done.answers[0].completed.prompt_logprobs,
        reasoning=chosen.reasoning,
    )


async def _plain(backend: Backend, entry: CallEntry, expr: Gen, sampling: SamplingParams, live: int | None) -> Performed:
    def put(delta: Delta) -> None:
        if delta.index == live:
            entry.pieces.put(delta.text)

    segments, messages = segments_of(backend, entry), messages_of(entry)
    constraint, written = expr.constraint, None
    if entry.stretch is not None:
        _check_stretches(backend)
        constraint, written = entry.stretch.constraint, entry.stretch.written(entry.previous)
        if sampling.stop:  # the sentence goes on behind it, so there is no end to steer to
            sampling = msgspec.structs.replace(sampling, close="cut")
    answer = await ask(backend, entry, segments, sampling, constraint, put, messages, written=written)
    metas = tuple([sample.meta() for sample in answer.samples])
    return Performed(metas, tuple(map(ids_of, metas)), (answer,))


def _picked(expr: Gen, metas: tuple[SampleMeta, ...]) -> int:
    picked = expr.pick([meta.text for meta in metas]) if callable(expr.pick) else expr.pick
    if not isinstance(picked, int) or not 0 <= picked < len(metas):
        raise ProgramMistake(f"pick must give an index in [0, {len(metas)}), got {picked!r}.")
    return picked


async def select(backend: Backend, entry: CallEntry, expr: Select, begin: float) -> Meta:
    """Perform a `select`: score the options, decide, and go on from the chosen one."""
    if entry.stretch is not None:
        expr = replace(expr, choices=await _fitting(backend, entry, entry.stretch, expr.choices))
    if not backend.capabilities.score:
        meta = await generate(backend, entry, written(backend, expr), begin)
        if meta.text not in expr.choices:
            raise BackendError(f"The backend wrote {meta.text[:80]!r}, which is none of the choices.")
        return msgspec.structs.replace(meta, method="mask")
    method = expr.method
    common = {
        "segments": segments_of(backend, entry),
        "options": expr.choices,
        "namespace": entry.place.context.namespace,
        "hints": hints_of(entry),
        "messages": messages_of(entry),
    }
    scored = await backend.score(ScoreRequest(id=entry.place.context.request_id(), with_end=method.with_end, **common))  # type: ignore[arg-type]  # one dict for both requests
    without = None
    if method.unconditional:
        without = await backend.score(ScoreRequest(id=entry.place.context.request_id(), unconditional=True, **common))  # type: ignore[arg-type]  # as above
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
    usage = scored.usage if without is None else scored.usage + without.usage
    entry.place.context.budget.spend(usage.prefilled_tokens, ends=True)
    return Meta(text, (), "stop", None, (), (), (sample,), usage, seconds, seed, (), metas, method.name)


async def _fitting(backend: Backend, entry: CallEntry, stretch: Stretch, choices: tuple[str, ...]) -> tuple[str, ...]:
    """The options that can stand here in a sentence. Raises ProgramMistake where there is none."""
    _check(backend, stretch.constraint, logprobs=False)
    _check_stretches(backend)
    segments, nothing = segments_of(backend, entry), SamplingParams(max_tokens=0)
    fitting = list[str]()
    for choice in choices:
        written = stretch.written(entry.previous, choice)
        try:
            await ask(backend, entry, (*segments, Text(choice)), nothing, stretch.constraint, lambda delta: None, written=written)
        except InvalidRequest as error:
            if error.param != "written":
                raise
            continue
        fitting.append(choice)
    if not fitting:
        raise ProgramMistake(f"None of the options {', '.join(map(repr, choices))[:200]} can come here in the grammar.")
    return tuple(fitting)


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


def _sampled(decision: Decision, temperature: float, seed: int) -> int:
    best = max(decision.probabilities)
    weights = [(probability / best) ** (1 / temperature) for probability in decision.probabilities]
    return random.Random(seed).choices(range(len(weights)), weights)[0]


def _seed(entry: CallEntry) -> int:
    context = entry.place.context
    return derive_seed(context.seed, context.program, *entry.place.path, entry.index)


def _check_stretches(backend: Backend) -> None:
    if not backend.capabilities.stretches:
        raise NotSupported("This backend can't hold a stretch of text to one grammar; give each gen a constraint of its own.")


def _check(backend: Backend, constraint: Constraint | None, *, logprobs: bool) -> None:
    capabilities = backend.capabilities
    tag = constraint.__struct_config__.tag if constraint is not None else None
    if tag is not None and tag not in capabilities.constraints:
        known = ", ".join(sorted(capabilities.constraints)) or "none"
        raise NotSupported(f"This backend can't hold output to a {tag}; it can: {known}.")
    if logprobs and not capabilities.logprobs:
        raise NotSupported("This backend reports no logprobs; leave return_logprob out.")
