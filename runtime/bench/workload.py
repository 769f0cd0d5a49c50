"""What a benchmark asks: sessions of one or several turns, made from options and a seed, so that they can be made again.

Prompts are random plain words, about a token each; servers count them exactly, and their counts are what is reported.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["Ask", "Session", "WorkloadOptions", "make_sessions"]

WorkloadName = Literal["random", "file", "prefix", "turns"]

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power "
    "hour game line end member law car city community name president team minute idea kid body information back parent face "
    "others level office door health person art war history party result change morning reason research girl guy moment air "
    "teacher force education "
)
_AT_LEAST_ONE = ("requests", "prompt_tokens", "output_tokens", "groups", "turns")


class WorkloadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests a benchmark sends. Raises InvalidRequest naming the option."""

    workload: Annotated[
        WorkloadName,
        Meta(
            description="random: prompts that share nothing; file: lengths or prompts of real requests; prefix: groups of"
            " requests that share a prefix; turns: conversations, each turn on top of the answers before."
        ),
    ] = "random"
    requests: Annotated[int, Meta(description="Requests, all turns counted.")] = 100
    prompt_tokens: Annotated[int, Meta(description="Tokens of a prompt, beyond what it shares, or of a turn.")] = 256
    output_tokens: Annotated[int, Meta(description="Tokens of an output.")] = 128
    spread: Annotated[float, Meta(description="Lengths vary by this part up and down, 0 to 1.")] = 0.0
    lengths_file: Annotated[
        str | None,
        Meta(description="For `file`: JSON lines with output_tokens, and prompt (text) or prompt_tokens. Drawn from at random."),
    ] = None
    groups: Annotated[int, Meta(description="For `prefix`: how many different prefixes.")] = 8
    prefix_tokens: Annotated[int, Meta(description="For `prefix`: tokens of a prefix; for `turns`: of a system prompt.")] = 512
    turns: Annotated[int, Meta(description="For `turns`: turns of a conversation.")] = 4
    seed: Annotated[int, Meta(description="Seed of all that is random.")] = 0

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {getattr(self, name)}.", param=name)
        if self.prefix_tokens < 0:
            raise InvalidRequest(f"prefix_tokens must be at least 0, got {self.prefix_tokens}.", param="prefix_tokens")
        if not 0 <= self.spread <= 1:
            raise InvalidRequest(f"spread must be in [0, 1], got {self.spread}.", param="spread")
        if self.workload not in get_args(WorkloadName):
            raise InvalidRequest(
                f"workload must be one of {', '.join(get_args(WorkloadName))}, got {self.workload!r:.40}.", param="workload"
            )
        if (self.workload == "file") != (self.lengths_file is not None):
            raise InvalidRequest("lengths_file and the workload `file` go together; give both or neither.", param="lengths_file")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its text, which in a conversation follows the answers before, and the tokens of its output."""

    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that come one after the other, each when the one before has ended; most have one. `system` stands before all."""

    asks: tuple[Ask, ...]
    system: str = ""


class _Line(msgspec.Struct, frozen=True):
    output_tokens: int
    prompt_tokens: int | None = None
    prompt: str | None = None


def make_sessions(options: WorkloadOptions) -> list[Session]:
    """The sessions in the order in which they arrive. Raises InvalidRequest for a file that can't be used."""
    chance = random.Random(options.seed)
    return list(_MAKERS[options.workload](options, chance))


def _random(options: WorkloadOptions, chance: random.Random) -> Iterator[Session]:
    for _ in range(options.requests):
        yield Session((_ask(options, chance),))


def _from_file(options: WorkloadOptions, chance: random.Random) -> Iterator[Session]:
    lines = _read(Path(options.lengths_file or ""))
    for _ in range(options.requests):
        line = chance.choice(lines)
        text = line.prompt if line.prompt is not None else _text(chance, line.prompt_tokens or 1)
        yield Session((Ask(text, line.output_tokens),))


def _prefix(options: WorkloadOptions, chance: random.Random) -> Iterator[Session]:
    prefixes = [_text(chance, options.prefix_tokens) for _ in range(options.groups)]
    for place in range(options.requests):
        yield Session((_ask(options, chance),), prefixes[place % len(prefixes)])


def _turns(options: WorkloadOptions, chance: random.Random) -> Iterator[Session]:
    system = _text(chance, options.prefix_tokens)
    for begin in range(0, options.requests, options.turns):
        count = min(options.turns, options.requests - begin)
        yield Session(tuple(_ask(options, chance) for _ in range(count)), system)


_MAKERS = {"random": _random, "file": _from_file, "prefix": _prefix, "turns": _turns}


def _ask(options: WorkloadOptions, chance: random.Random) -> Ask:
    lengths = (options.prompt_tokens, options.output_tokens)
    prompt, output = (max(1, round(length * chance.uniform(1 - options.spread, 1 + options.spread))) for length in lengths)
    return Ask(_text(chance, prompt), output)


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS.split(), k=words))


def _read(path: Path) -> list[_Line]:
    try:
        lines = [msgspec.json.decode(line, type=_Line) for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}.", param="lengths_file") from error
    except msgspec.DecodeError as error:
        told = 'lines like {"prompt_tokens": 200, "output_tokens": 50}'
        raise InvalidRequest(f"{path} should hold {told}: {error}", param="lengths_file") from error
    if not lines or any(line.output_tokens < 1 or (line.prompt is None and (line.prompt_tokens or 0) < 1) for line in lines):
        raise InvalidRequest(f"Each line of {path} needs output_tokens, and prompt or prompt_tokens.", param="lengths_file")
    return lines
