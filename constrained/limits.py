"""What a grammar compiler keeps and takes on: the numbers that whoever builds one may choose."""

from dataclasses import dataclass

__all__ = ["CompilerLimits"]


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """What a compiler keeps and takes on.

    `cached`: grammars kept, least recently used dropped. `cached_characters`: length of their constraints in all; for each a
    grammar takes some tens of bytes of memory. `failure_seconds`: how long a refusal is remembered.
    `waiting`: constraints of one owner that may wait, `trials`: risky ones; more are refused. `index_states`: automaton size up
    to which outlines-core is used.
    `options` and `option_bytes`: number and total size of choices. `prefix_bytes`: length of healed text. `trial_seconds` (of
    CPU; 0: none are made) and `trial_bytes` (of memory): what a risky constraint may take on trial, see `sandbox.py`.
    """

    cached: int = 256
    cached_characters: int = 16 << 20
    failure_seconds: float = 10.0
    waiting: int = 1024
    index_states: int = 400
    options: int = 20_000
    option_bytes: int = 1 << 20
    prefix_bytes: int = 4096
    trials: int = 64
    trial_seconds: float = 1.5
    trial_bytes: int = 1 << 30
