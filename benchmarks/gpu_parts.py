"""What `benchmarks.gpu` does in one process: checks and times all kernels, or serves the workloads with one model.

Each figure is printed as it is taken. Whatever breaks while a model serves ends the process: its engine still holds the requests.
"""

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from benchmarks.floors import Ceilings
from benchmarks.gpu_floors import serving_work
from benchmarks.gpu_measure import ceilings, seconds_of, waiting_share
from benchmarks.gpu_workloads import Outcome, Scale, Workloads
from benchmarks.kernel_cases import KernelCase, Sizes, kernel_cases, sharing_case
from benchmarks.report import Figure, Report
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.kernels.compiling import compile_launches
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.generation import TokenTable
from branchpoint.runtime.loading import make_runner
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.tiled_attention import TiledAttention
from branchpoint.runtime.tokenizer import load_tokenizer
from branchpoint.runtime.weights.loader import load_model

if TYPE_CHECKING:
    from branchpoint.runtime.runner import TorchRunner

__all__ = ["Part", "check_kernels", "serve_model", "time_kernels", "time_sharing"]

BENCH = "gpu"
CHECKED = (Sizes(300, 4096, 14336, 32, 8, 128, 128256, 1000, 8), Sizes(77, 1024, 3072, 16, 8, 128, 151936, 333, 5))
ODD = (
    Sizes(33, 576, 1536, 9, 3, 64, 49152, 200, 3, page_size=1),
    Sizes(19, 640, 1712, 8, 8, 80, 1000, 150, 3, page_size=64),
    Sizes(19, 768, 2048, 8, 1, 96, 1000, 150, 3),
    Sizes(19, 2048, 5632, 8, 4, 256, 1000, 150, 3),
)
"""Heads of all sizes, in 16 bit alone: float32 is no form that a GPU serves in."""
TIMED = Sizes(8192, 4096, 14336, 32, 8, 128, 128256, 4096, 64)
SHARED = ((2, 20_000), (8, 2_500), (32, 640), (256, 128), (256, 2_048))
"""Slots and what they share: where the rule has just begun to read it once, and where that pays most."""
TINY = Sizes(5, 96, 80, 4, 2, 32, 300, 48, 3)


@dataclass(frozen=True, slots=True)
class Part:
    """One process's part; `deadline` is when nothing further begins."""

    report: Report
    device: torch.device
    dry: bool
    deadline: float

    @property
    def dtype(self) -> torch.dtype:
        """What kernels are timed in."""
        return torch.float16 if self.dry else torch.bfloat16  # the interpreter's bfloat16 products are wrong

    def has_time(self, what: str) -> bool:
        if time.perf_counter() < self.deadline:
            return True
        self.report.skip(BENCH, what, "no time left")
        return False

    def add(self, case: str, unit: str, value: float, peer: str | None = None, peer_value: float | None = None) -> None:
        self.report.add(Figure(BENCH, case, unit, value, peer, peer_value, lower_is_better=unit in ("s", "ms", "µs")))


def check_kernels(part: Part) -> bool:
    """Hold every kernel against its reference on the device, and say which are wrong; whether none is."""
    wrong = []
    checks = [(sizes, dtype) for sizes in ((TINY,) if part.dry else CHECKED) for dtype in (torch.float32, part.dtype)]
    checks += [] if part.dry else [(sizes, torch.float16) for sizes in ODD]
    _compile(part, checks)
    for sizes, dtype in checks:
        for case in kernel_cases(sizes, part.device, dtype):
            fault = _fault(case)
            if fault:
                wrong.append(f"{case.name} ({dtype}, heads of {sizes.head_dim}): {fault}")
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return not wrong


def _compile(part: Part, checks: Sequence[tuple[Sizes, torch.dtype]]) -> None:
    """All at once what the kernels' cases launch: one by one takes minutes."""

    def launch() -> None:
        for sizes, dtype in checks:
            for case in kernel_cases(sizes, part.device, dtype):
                case.run()

    if part.device.type == "cuda":
        try:
            compile_launches(launch, part.device, usable_cores())
        except Exception as error:  # noqa: BLE001  # a kernel that doesn't compile: it is named when it is tried by itself
            traceback.print_exception(error, file=sys.stderr)


def _fault(case: KernelCase) -> str:
    """What is wrong with a kernel; empty where nothing is."""
    try:
        error = case.error()
    except Exception as broken:  # noqa: BLE001  # the boundary of one kernel: others are to be named, too
        return f"{type(broken).__name__}: {str(broken)[:300]}"
    return "" if error <= case.tolerance else f"off by {error:.2g} of the largest entry, {case.tolerance:.2g} allowed"


def time_kernels(part: Part) -> bool:
    """Each kernel's time beside its floor: the ratio is the share of the floor that it reaches. Whether none broke."""
    sizes, complete = TINY if part.dry else TIMED, True
    limits = _ceilings(part)
    _compile(part, [(sizes, part.dtype)])
    for case in kernel_cases(sizes, part.device, part.dtype):
        if case.work is None or not part.has_time(case.name):
            continue
        try:
            seconds = seconds_of(case.run, part.device)
        except Exception as error:  # noqa: BLE001  # the boundary of one kernel: others' figures are worth having
            part.report.skip(BENCH, case.name, _told(error))
            complete = False
            continue
        asked = "" if case.bar is None else f" (bar {case.bar:.2f})"
        part.add(f"{case.name}{asked}", "µs", 1e6 * seconds, "floor", 1e6 * case.work.seconds(limits))
    return complete


def time_sharing(part: Part) -> bool:
    """Attention with shared prefixes beside the same without: never to be slower by more than 3 %. Whether nothing broke."""
    sizes = TINY if part.dry else TIMED
    for slots, common in ((3, 64),) if part.dry else SHARED:
        name = f"decode attention, {slots} slots behind {common} tokens (bar 0.97)"
        try:
            shared, plain = (
                seconds_of(sharing_case(sizes, slots, common, part.device, part.dtype, share=share), part.device)
                for share in (True, False)
            )
        except Exception as error:  # noqa: BLE001  # the boundary of one kernel: others' figures are worth having
            part.report.skip(BENCH, name, _told(error))
            return False
        part.add(name, "µs", 1e6 * shared, "unshared", 1e6 * plain)
    return True


def _ceilings(part: Part) -> Ceilings:
    limits = ceilings(part.device, part.dtype)
    part.add("copy, read and written", "GB/s", limits.bytes / 1e9)
    part.add("matrix product", "TFLOP/s", limits.operations / 1e12)
    return limits


def _told(error: Exception) -> str:
    traceback.print_exception(error, file=sys.stderr)
    return f"{type(error).__name__}: {str(error)[:200]}"


def serve_model(part: Part, name: str, shape: dict[str, object], workloads: list[str]) -> bool:
    """The workloads with dummy weights of one shape; each is announced before it begins. Whether none broke."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            served = _Served(part, name, shape, Path(folder))
    except Exception as error:  # noqa: BLE001  # the boundary of one model
        part.report.skip(BENCH, name, _told(error))
        return False
    try:
        for workload in workloads:
            if part.has_time(f"{name} {workload}"):
                print(json.dumps({"bench": BENCH, "begins": workload}), flush=True)
                served.measures[workload]()
    except Exception as error:  # noqa: BLE001  # the boundary of one workload: others are measured in another process
        part.report.skip(BENCH, f"{name} {workload}", _told(error))
        return False
    finally:
        served.close()
    return True


class _Served:
    """A model with two engines over one runner, the second without a radix cache; one may run at a time, with an empty cache.

    `measures` take the figures of each workload.
    """

    def __init__(self, part: Part, name: str, shape: dict[str, object], folder: Path) -> None:
        self._part, self._name = part, name
        (folder / "config.json").write_text(json.dumps(shape))
        config = EngineConfig(
            model=f"dummy:{folder / 'config.json'}",
            dtype="float32" if part.dry else "bfloat16",
            context_length=8192,
            num_pages=512 if part.dry else None,
            max_sequences=8 if part.dry else 256,
            max_batch_tokens=64 if part.dry else 8192,
            seed=0,
        )
        self._limits = _ceilings(part)
        started = time.perf_counter()
        loaded = load_model(config, part.device)
        weights = time.perf_counter()
        self._shape = loaded.config
        self._runner = make_runner(config, loaded, part.device).runner
        self._engine, self._cacheless = _engines(config, self._runner, loaded.config)
        self._work = Workloads(loaded.config.vocabulary_size, Scale(6, 2, 16) if part.dry else Scale())
        self._work.decoding(self._engine, 1, 2)
        part.add(f"{name} dummy weights", "s", weights - started)
        part.add(f"{name} start-up: kernels, pool, graphs, first token", "s", time.perf_counter() - weights)
        self._work.warm_up(self._engine)
        self.measures: dict[str, Callable[[], None]] = {
            "W1": self._single,
            "W2": self._mixed,
            "W3": self._prefixed,
            "W4": self._conversations,
            "W5": self._constrained,
            "host": self._host,
        }

    def close(self) -> None:
        self._engine.close()
        self._cacheless.close()

    def _single(self) -> None:
        outcome = self._work.single(self._engine)
        self._part.add(f"{self._name} W1 one stream", "ms", 1e3 / outcome.rate)
        self._floor("W1", outcome)

    def _mixed(self) -> None:
        outcome = self._work.mixed(self._engine)
        self._part.add(f"{self._name} W2 mixed", "tok/s", outcome.rate)
        self._floor("W2", outcome)

    def _conversations(self) -> None:
        outcome = self._work.conversations(self._engine)
        self._part.add(f"{self._name} W4 conversations", "s", outcome.seconds)
        self._floor("W4", outcome)

    def _prefixed(self) -> None:
        part, name, work, engine = self._part, self._name, self._work, self._engine
        whole, prefill = work.prefixed(engine), work.prefixed(engine, only_prefill=True).seconds
        part.add(f"{name} W3 shared prefix", "s", whole.seconds)
        self._floor("W3", whole)
        attention = self._runner._attention  # the option that turns sharing off would need another pool
        if isinstance(attention, TiledAttention):
            attention.share = False
            plain, plain_prefill = work.prefixed(engine).seconds, work.prefixed(engine, only_prefill=True).seconds
            attention.share = True
            decoding = whole.seconds - prefill
            part.add(f"{name} W3 decoding, beside unshared attention", "s", decoding, "unshared", plain - plain_prefill)
        cacheless = work.prefixed(self._cacheless).seconds
        part.add(f"{name} W3, beside no radix cache", "s", whole.seconds, "no cache", cacheless)

    def _constrained(self) -> None:
        free, masked = (self._work.constrained(self._engine, masked=masked) for masked in (False, True))
        self._part.add(f"{self._name} W5 JSON schema", "tok/s", masked.rate, "no masks", free.rate)

    def _host(self) -> None:
        batch, steps = (4, 3) if self._part.dry else (64, 64)
        share = waiting_share(lambda: self._work.decoding(self._engine, batch, steps), self._part.device)
        if share is not None:
            self._part.add(f"{self._name} host time not hidden, batch {batch}", "% of step", 100 * share)

    def _floor(self, workload: str, outcome: Outcome) -> None:
        """What the workload took beside what it can't go below: the ratio is the share of the floor that was reached."""
        floor = serving_work(self._shape, outcome.least, 2).seconds(self._limits)
        self._part.add(f"{self._name} {workload}, beside its floor", "s", outcome.seconds, "floor", floor)


def _engines(config: EngineConfig, runner: "TorchRunner", shape: ModelConfig) -> tuple[Engine, Engine]:
    tokenizer = load_tokenizer(None, shape.vocabulary_size, shape.eos_token_ids)
    table = TokenTable(shape.vocabulary_size, frozenset(tokenizer.eos_token_ids), tokenizer.special_ids, tokenizer.token_bytes)
    compiler = GrammarCompiler(tokenizer.vocabulary)
    cacheless = msgspec.structs.replace(config, radix_cache=False)
    with_cache, without = (Engine(each, runner, compiler, table, shape.context_length) for each in (config, cacheless))
    return with_cache, without
