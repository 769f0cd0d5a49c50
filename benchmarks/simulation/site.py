"""Builds what a simulation runs on: an engine of one policy around a simulated runner, and the programs' arrivals."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from benchmarks.simulation.clock import SimulatedClock
from benchmarks.simulation.cost import CostModel
from benchmarks.simulation.driver import Driver
from benchmarks.simulation.outcome import Outcome
from benchmarks.simulation.runner import EOS, VOCABULARY, SimulatedRunner
from benchmarks.simulation.scripts import Program
from benchmarks.simulation.shapes import Shape
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.spec import Constraint, Demands
from branchpoint.runtime.config import EngineConfig, Policy
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.generation import TokenTable

__all__ = ["Setting", "arrivals", "simulate"]

MAX_QUEUED = 2**24


@dataclass(frozen=True, slots=True)
class Setting:
    """The simulated device and the engine's limits. Sizes in tokens, but `num_pages`."""

    cost: CostModel
    num_pages: int
    context_length: int
    page_size: int = 16
    max_batch_tokens: int = 2048
    max_sequences: int = 256


class _NoGrammars:
    """A compiler for programs that hold no output to anything."""

    def compile(
        self,
        constraint: Constraint | None,
        prefix: bytes,
        owner: str = "",
        **demands: Unpack[Demands],
    ) -> "Future[CompiledGrammar]":
        # not a stub: the shapes that are simulated have no constraints, and one that had would be told so
        raise NotImplementedError(f"Simulated programs are free text; got {constraint} behind {prefix!r}.")


def _bytes_of(token: int) -> bytes:
    return b"x"


def arrivals(programs: int, rate: float | None) -> list[float]:
    """When each program starts: all at once, or at random, `rate` a second on average."""
    if rate is None:
        return [0.0] * programs
    gaps = np.random.default_rng(7).exponential(1 / rate, programs)
    return [float(when) for when in np.cumsum(gaps)]


def simulate(shape: Shape, times: list[float], policy: Policy, setting: Setting, *, hints: bool) -> Outcome:
    """Run a program of `shape` for each of `times` under `policy`."""
    clock = SimulatedClock()
    runner = SimulatedRunner(setting.num_pages, setting.page_size, setting.cost, clock)
    config = EngineConfig(
        model="simulated",
        policy=policy,
        page_size=setting.page_size,
        num_pages=setting.num_pages,
        max_batch_tokens=setting.max_batch_tokens,
        max_sequences=setting.max_sequences,
        max_queued=MAX_QUEUED,
        seed=0,
    )
    table = TokenTable(VOCABULARY, frozenset({EOS}), frozenset({EOS}), _bytes_of)
    engine = Engine(config, runner, _NoGrammars(), table, setting.context_length, clock=clock)

    def programs() -> Iterator[Program]:
        for index, when in enumerate(times):
            yield Program(shape(index), when)

    try:
        return Driver(engine, clock, hints=hints).run(programs())
    finally:
        engine.close()
