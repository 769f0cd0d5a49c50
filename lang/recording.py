"""What a run's calls came to, kept so that the run can be played again without a model (LANGUAGE B3).

`Run.save` writes a recording, `replay` (in `backends/replay.py`) reads it: a backend that answers each request as it was answered
before. A call is known by its branch, prompt and options; calls that are the same answer in the order in which they were made.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from branchpoint.constrained.spec import Constraint, Narrowing, Written
from branchpoint.lang.asking import Answer
from branchpoint.lang.chain import prompt_of, turns_of
from branchpoint.lang.chat import Turn
from branchpoint.lang.context import RunContext
from branchpoint.lang.errors import ProgramError, said_by
from branchpoint.lang.expr import Gen
from branchpoint.lang.ledger import RoleEntry
from branchpoint.lang.options import merge, sampling_params
from branchpoint.lang.result import SampleMeta
from branchpoint.lang.variables import CallEntry
from branchpoint.runtime.messages import FinishReason, Segment, TokenLogprob, Usage
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["VERSION", "Call", "RecordedRun", "RoleText", "Sample", "generate_key", "record", "role_key", "score_key"]

VERSION = 2


class Sample(msgspec.Struct, frozen=True):
    """One sample of a gen."""

    text: str
    tokens: tuple[int, ...]
    reason: FinishReason
    stop: str | int | None
    narrowed: tuple[Narrowing, ...]
    logprobs: tuple[TokenLogprob, ...]


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call. `samples` are a gen's; `rows`, `ends` and `unconditional` a select's log-probabilities.

    `failure` is what it failed with; `cancelled` calls had no answer before the program gave them up.
    """

    key: str
    line: str
    name: str | None = None
    samples: tuple[Sample, ...] = ()
    rows: tuple[tuple[float, ...], ...] = ()
    ends: tuple[float | None, ...] = ()
    unconditional: tuple[tuple[float, ...] | None, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage = Usage()
    failure: str | None = None
    cancelled: bool = False


class RoleText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the chat template put around a role."""

    key: str
    text: str
    rebase: tuple[Segment, ...] | None = None


class RecordedRun(msgspec.Struct, frozen=True):
    """A whole run, its calls in the order in which they ended. `native_tools`: its backend called tools itself."""

    program: str
    seed: int
    calls: tuple[Call, ...]
    roles: tuple[RoleText, ...]
    version: int = VERSION
    native_tools: bool = False


def _key(*parts: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=12).hexdigest()


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def generate_key(
    path: Sequence[int],
    segments: Sequence[Segment],
    sampling: SamplingParams,
    constraint: Constraint | None,
    written: Written | None = None,
) -> str:
    """What a gen is known by. Its seed and its limit aren't part of it: they depend on the run.

    With `written` it counts whether it may write at all: one that mayn't only asks whether a sentence goes like that.
    """
    begun = () if written is None else (written, sampling.max_tokens == 0)
    sampling = msgspec.structs.replace(sampling, seed=None, max_tokens=None, min_tokens=0)
    return _key("gen", path, _text(segments), sampling, constraint, *begun)


def score_key(path: Sequence[int], segments: Sequence[Segment], options: Sequence[str]) -> str:
    """What a select is known by."""
    return _key("select", path, _text(segments), options)


def role_key(turns: Sequence[Turn], role: str, *, opens: bool) -> str:
    """What the text around a role is known by."""
    return _key("role", role, opens, [(turn.role, _text(turn.content)) for turn in turns])


def record(context: RunContext) -> RecordedRun:
    """The recording of a run that is over."""
    calls = [call for entry in context.settled if isinstance(entry, CallEntry) for call in _calls(entry)]
    roles = [
        RoleText(role_key(turns_of(entry.previous), entry.role, opens=entry.opens), _text(entry.result), entry.rebase)
        for entry in context.settled
        if isinstance(entry, RoleEntry) and entry.failure is None
    ]
    known = {role.key: role for role in roles}
    native = context.executor.backend.capabilities.tools
    return RecordedRun(context.program, context.seed, tuple(calls), tuple(known.values()), native_tools=native)


def _calls(entry: CallEntry) -> list[Call]:
    """The requests of a call: none where it was never made, several where it thought first or called a tool."""
    begun = entry.stretch is not None
    if isinstance(entry.expr, Gen) and (entry.expr.staged or begun) and entry.failure is None:
        return [_asked(entry, answer) for answer in entry.answers]
    call = _call(entry) if entry.failure is None or not begun else None  # what its grammar refuses it refuses again
    return [call] if call is not None else []


def _asked(entry: CallEntry, answer: Answer) -> Call:
    request, completed = answer.request, answer.completed
    key = generate_key(request.hints.path, request.segments, request.sampling, request.constraint, request.written)
    samples = tuple(_sample(sample.meta()) for sample in answer.samples)
    return Call(
        key,
        str(entry.origin),
        entry.name,
        samples=samples,
        prompt_logprobs=completed.prompt_logprobs,
        usage=completed.usage,
    )


def _sample(one: SampleMeta) -> Sample:
    return Sample(one.text, one.tokens, one.finish_reason, one.stop, one.narrowed, one.logprobs)


def _call(entry: CallEntry) -> Call | None:
    if entry.failure is not None and entry.failure.entry is not entry:
        return None
    expr, context, line = entry.expr, entry.place.context, str(entry.origin)
    segments, path = prompt_of(entry.previous), entry.place.path
    if isinstance(expr, Gen):
        key = generate_key(path, segments, sampling_params(merge(context.options, expr.options)), expr.constraint)
    else:
        key = score_key(path, segments, expr.choices)
    if entry.failure is not None:
        return Call(key, line, entry.name, failure=said_by(entry.failure.cause), cancelled=entry.dropped is not None)
    try:
        meta = entry.meta()
    except ProgramError:
        return None
    if entry.stretch is not None:  # a select, of which only what could stand was scored
        key = score_key(path, segments, [option.text for option in meta.choices])
    return Call(
        key,
        line,
        entry.name,
        samples=tuple(map(_sample, meta.samples)),
        rows=tuple(option.logprobs for option in meta.choices),
        ends=tuple(option.end for option in meta.choices),
        unconditional=tuple(option.unconditional for option in meta.choices),
        prompt_logprobs=meta.prompt_logprobs,
        usage=meta.usage,
    )
