"""What a simulated program does: a generator that yields its next deed and is sent what came of it.

Written in `shapes.py`; performed by the driver (on an engine) and by the oracle (at no cost).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Ask", "Deed", "Fork", "Pause", "Program", "Score", "Script", "call_seed"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Generate `max_tokens` tokens after `prompt`; sent back: those tokens.

    `returns`: the program goes on from here; after `pause` seconds, where it knows.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    returns: bool = True
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """Score each of `options` after `prompt`; nothing is sent back. A client that has no language sends a request for each."""

    prompt: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    returns: bool = True


@dataclass(frozen=True, slots=True)
class Pause:
    """Do something else for `seconds`: a tool, a person who reads."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fork:
    """Run the branches at once; sent back, when all have ended: what each returned."""

    branches: "Sequence[Script]"


Deed = Ask | Score | Pause | Fork
Script = Generator[Deed, Any, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A script and the time at which its user starts it, in seconds."""

    script: Script
    arrival: float = 0.0


def call_seed(program: int, path: tuple[int, ...], call: int) -> int:
    """The seed of a program's call, the same under every policy."""
    return hash((program, path, call)) & 0xFFFFFFFF
