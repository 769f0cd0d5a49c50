"""Direct calls of an engine: what users may write as prompt and options, turned into checked calls.

Used by `engine.py`'s `generate` and its kin; `generation.py` is what comes back.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.lang.backends.base import Segment
from branchpoint.lang.backends.generation import Collected, Generation
from branchpoint.lang.options import SamplingOptions, sampling_params
from branchpoint.lang.types import output_type
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Call, Ids, Text
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Asked", "OnePrompt", "OutputOptions", "Prepare", "Prepared", "Sampling", "ask"]

OnePrompt = str | list[int] | tuple[Segment, ...]
"""A text (in which nothing is a special token), token ids, or segments, such as `Engine.render` gives."""

Sampling = SamplingParams | SamplingOptions
"""Options of sampling as one object, or as a dict."""


class OutputOptions(SamplingOptions, total=False):
    """Sampling options; what the output is held to (at most one of five); and whether the prompt's last token may be finished."""

    constraint: Constraint | None
    json_schema: str | Mapping[str, object] | type | None
    regex: str | None
    ebnf: str | None
    choices: Sequence[str] | None
    heal: bool


class Prepared(Protocol):
    """A prompt in tokens, as the tokenizer gives it."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """At least one."""

    @property
    def heal(self) -> bytes:
        """What was cut from the end."""


Prepare = Callable[[Sequence[Segment], bool], Prepared]
"""From segments, and whether to heal, to tokens."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A direct call, checked: one engine call for each prompt. `many`: the prompts came as a list."""

    calls: tuple[Call, ...]
    many: bool

    def collect(self) -> dict[str, Collected]:
        """What will take the events, by id."""
        return {call.id: Collected(call.sampling.n) for call in self.calls}

    def answer(self, found: Mapping[str, Collected]) -> Generation | list[Generation]:
        """What the caller gets, after the last event."""
        generations = [found[call.id].generation() for call in self.calls]
        return generations if self.many else generations[0]

    def single(self) -> "Asked":
        """Itself. Raises InvalidRequest where more than one text would come."""
        if self.many or self.calls[0].sampling.n > 1:
            raise InvalidRequest("A stream is the text of one prompt and one sample; use generate for more.", param="n")
        return self


def ask(prompt: object, sampling: Sampling | None, options: OutputOptions, prepare: Prepare) -> Asked:
    """Check a direct call. Raises InvalidRequest, or ProgramMistake for an unknown option."""
    given: dict[str, object] = dict(options)
    heal = bool(given.pop("heal", False))
    held = {name: given.pop(name, None) for name in _HELD}
    if sampling is not None and given:
        raise InvalidRequest(
            f"Give sampling options in sampling or as keywords, got both ({', '.join(given)}).", param="sampling"
        )
    if not isinstance(sampling, SamplingParams):
        sampling = sampling_params(cast(SamplingOptions, given if sampling is None else sampling))
    constraint = _constraint(held)
    prompts, many = _prompts(prompt)
    calls = []
    for segments in prompts:
        prepared = prepare(segments, heal)
        calls.append(Call(secrets.token_hex(8), prepared.tokens, sampling, constraint, prepared.heal))
    return Asked(tuple(calls), many)


def _prompts(prompt: object) -> tuple[list[tuple[Segment, ...]], bool]:
    """The prompts' segments, and whether there were several."""
    one = _one(prompt)
    if one is not None:
        return [one], False
    several = [_one(each) for each in prompt] if isinstance(prompt, Sequence) and prompt else [None]
    found = [segments for segments in several if segments is not None]
    if len(found) == len(several):
        return found, True
    raise InvalidRequest(
        f"A prompt must be a text, a list of token ids, segments, or a list of texts or of lists of ids; got {prompt!r:.80}.",
        param="prompt",
    )


def _one(prompt: object) -> tuple[Segment, ...] | None:
    if isinstance(prompt, str):
        return (Text(prompt),)
    if not isinstance(prompt, Sequence) or not prompt:
        return None
    if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
        return (Ids(tuple(prompt)),)
    return tuple(prompt) if all(isinstance(item, Text | Ids) for item in prompt) else None


_HELD = ("constraint", "json_schema", "regex", "ebnf", "choices")


def _constraint(held: Mapping[str, object]) -> Constraint | None:
    given = [(name, value) for name, value in held.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        names = " and ".join(name for name, _ in given)
        raise InvalidRequest(f"Give one of {', '.join(_HELD)}, got {names}.", param=given[0][0])
    match given[0]:
        case _, JsonSchema() | Regex() | Choice() | Ebnf() | StructuralTag() as constraint:
            return constraint
        case "json_schema", str() as schema:
            return JsonSchema(schema)
        case "json_schema", Mapping() as schema:
            return JsonSchema(json.dumps(schema))
        case "json_schema", type() as wanted:
            return output_type(wanted).constraint
        case "regex", str() as pattern:
            return Regex(pattern)
        case "ebnf", str() as grammar:
            return Ebnf(grammar)
        case "choices", Sequence() as options if not isinstance(options, str) and options and all(options):
            return Choice(tuple(options))
        case name, value:
            raise InvalidRequest(f"{name} can't be {value!r:.80}; see the options of Engine.generate.", param=name)
