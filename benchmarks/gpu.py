"""The GPU path: kernels checked, then timed against their floors; serving workloads beside vLLM's figures; one table.

    python -m benchmarks.gpu                      # on a machine with a GPU, under 8 minutes
    python -m benchmarks.gpu --dry                # tiny shapes on a CPU, kernels in Triton's interpreter: tries the script itself
    python -m benchmarks.gpu --models qwen06b --workloads W1,W3

Stops with status 1 where a kernel is wrong, ends with it where a workload broke. vLLM's figures were measured on one H200 with
dummy weights, on 2026-11-29.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from benchmarks.report import Figure, Report

if TYPE_CHECKING:
    from benchmarks.gpu_workloads import Workloads
    from benchmarks.kernel_cases import Sizes
    from branchpoint.runtime.config import EngineConfig
    from branchpoint.runtime.engine import Engine
    from branchpoint.runtime.models.config import ModelConfig
    from branchpoint.runtime.runner import TorchRunner

__all__ = ["main"]

BENCH, PEER = "gpu", "vLLM 0.26"
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "eos_token_id": 128001, "tie_word_embeddings": False,
}  # fmt: skip
QWEN = {
    "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "eos_token_id": 151645, "tie_word_embeddings": True,
}  # fmt: skip
TINY = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192, "rope_theta": 10000.0, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
VLLM = {
    "llama8b": {"W1": 4.889, "W2": 8937.0, "W3": 1.937, "W4": 3.995},
    "qwen06b": {"W1": 2.344, "W2": 20630.0, "W3": 1.065, "W4": 1.681},
}
"""W1 in ms a token, W2 in output tokens a second, W3 and W4 in seconds."""


@dataclass(frozen=True, slots=True)
class _Run:
    """What this run is about; `deadline` is when no further workload begins."""

    report: Report
    device: torch.device
    workloads: frozenset[str]
    dry: bool
    deadline: float
    broken: list[str] = field(default_factory=list)

    def has_time(self, what: str) -> bool:
        if time.perf_counter() < self.deadline:
            return True
        self.report.skip(BENCH, what, "no time left")
        return False

    def failed(self, what: str, error: Exception) -> None:
        """A workload broke: the figures of others still count, the exit status says so."""
        traceback.print_exception(error, file=sys.stderr)
        self.report.skip(BENCH, what, f"{type(error).__name__}: {str(error)[:200]}")
        self.broken.append(what)

    def add(self, case: str, unit: str, value: float, peer: str | None = None, peer_value: float | None = None) -> None:
        lower = unit in ("s", "ms", "µs")
        self.report.add(Figure(BENCH, case, unit, value, peer, peer_value, lower_is_better=lower))


def check_kernels(run: _Run) -> bool:
    """Hold every kernel against its reference on the device; says which are wrong."""
    from benchmarks.kernel_cases import kernel_cases

    wrong = []
    for sizes in _check_sizes(run.dry):
        for dtype in (
            torch.float32,
            torch.float16 if run.dry else torch.bfloat16,
        ):  # the interpreter's bfloat16 products are wrong
            for case in kernel_cases(sizes, run.device, dtype):
                error = case.error()
                if not error <= case.tolerance:
                    wrong.append(f"{case.name} ({dtype}): off by {error:.2g} of the largest entry, {case.tolerance:.2g} allowed")
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    return not wrong


def time_kernels(run: _Run) -> None:
    """Each kernel's time beside its floor: the ratio is the share of the floor that it reaches."""
    from benchmarks.gpu_measure import ceilings, seconds_of
    from benchmarks.kernel_cases import kernel_cases

    dtype = torch.float16 if run.dry else torch.bfloat16
    limits = ceilings(run.device, dtype)
    run.add("copy, read and written", "GB/s", limits.bytes / 1e9)
    run.add("matrix product", "TFLOP/s", limits.operations / 1e12)
    for case in kernel_cases(_timed_sizes(run.dry), run.device, dtype):
        if case.work is not None and run.has_time(case.name):
            floor = case.work.seconds(limits)
            asked = "" if case.bar is None else f" (bar {case.bar:.2f})"
            run.add(f"{case.name}{asked}", "µs", 1e6 * seconds_of(case.run, run.device), "floor", 1e6 * floor)


def serve_model(run: _Run, name: str, shape: dict[str, object], folder: Path) -> None:
    """All workloads with dummy weights of one shape."""
    from benchmarks.gpu_workloads import Scale, Workloads
    from branchpoint.runtime.config import EngineConfig
    from branchpoint.runtime.loading import make_runner
    from branchpoint.runtime.weights.loader import load_model

    (folder / "config.json").write_text(json.dumps(shape))
    config = EngineConfig(
        model=f"dummy:{folder / 'config.json'}",
        dtype="float32" if run.dry else "bfloat16",
        context_length=8192,
        num_pages=512 if run.dry else None,
        max_sequences=8 if run.dry else 256,
        max_batch_tokens=64 if run.dry else 8192,
        seed=0,
    )
    started = time.perf_counter()
    loaded = load_model(config, run.device)
    weights = time.perf_counter()
    runner = make_runner(config, loaded, run.device).runner
    engines = _engines(config, runner, loaded.config)
    work = Workloads(loaded.config.vocabulary_size, Scale(6, 2, 16) if run.dry else Scale())
    work.decoding(engines[0], 1, 2)
    run.add(f"{name} dummy weights", "s", weights - started)
    run.add(f"{name} start-up: pool, graphs, first token", "s", time.perf_counter() - weights, PEER, None if run.dry else 42.0)
    try:
        _measure(run, name, *engines, runner, work)
    finally:
        for engine in engines:
            engine.close()


def _measure(run: _Run, name: str, engine: "Engine", cacheless: "Engine", runner: "TorchRunner", work: "Workloads") -> None:
    from benchmarks.gpu_measure import busy_share

    vllm = {} if run.dry else VLLM.get(name, {})
    wanted: dict[str, Callable[[], None]] = {
        "W1": lambda: run.add(f"{name} W1 one stream", "ms", 1e3 * work.single(engine), PEER, vllm.get("W1")),
        "W2": lambda: run.add(f"{name} W2 mixed", "tok/s", work.mixed(engine).rate, PEER, vllm.get("W2")),
        "W3": lambda: _prefixed(run, name, engine, cacheless, runner, work, vllm.get("W3")),
        "W4": lambda: run.add(f"{name} W4 conversations", "s", work.conversations(engine).seconds, PEER, vllm.get("W4")),
        "W5": lambda: _constrained(run, name, engine, work),
    }
    for workload, measure in wanted.items():
        if workload in run.workloads and run.has_time(f"{name} {workload}"):
            try:
                measure()
            except Exception as error:  # noqa: BLE001  # the boundary of one workload: the others' figures are worth having
                run.failed(f"{name} {workload}", error)
    batch, steps = (4, 3) if run.dry else (64, 24)
    share = busy_share(lambda: work.decoding(engine, batch, steps), run.device)
    if share is not None:
        run.add(f"{name} host time not hidden, batch {batch}", "% of step", 100 * (1 - share))


def _prefixed(
    run: _Run, name: str, engine: "Engine", cacheless: "Engine", runner: "TorchRunner", work: "Workloads", vllm: float | None
) -> None:
    from branchpoint.runtime.tiled_attention import TiledAttention

    whole, prefill = work.prefixed(engine).seconds, work.prefixed(engine, only_prefill=True).seconds
    run.add(f"{name} W3 shared prefix", "s", whole, PEER, vllm)
    run.add(f"{name} W3, beside no radix cache", "s", whole, "no cache", work.prefixed(cacheless).seconds)
    attention = runner._attention  # the option that turns sharing off would need another pool
    if isinstance(attention, TiledAttention):
        attention.share = False
        plain, plain_prefill = work.prefixed(engine).seconds, work.prefixed(engine, only_prefill=True).seconds
        attention.share = True
        run.add(f"{name} W3 decoding, beside unshared attention", "s", whole - prefill, "unshared", plain - plain_prefill)


def _constrained(run: _Run, name: str, engine: "Engine", work: "Workloads") -> None:
    free, masked = work.constrained(engine, masked=False), work.constrained(engine, masked=True)
    run.add(f"{name} W5 JSON schema", "tok/s", masked.rate, "no masks", free.rate)


def _engines(config: "EngineConfig", runner: "TorchRunner", shape: "ModelConfig") -> tuple["Engine", "Engine"]:
    """Two engines over one runner, the second without a radix cache. One may run at a time, and begins with an empty cache."""
    from branchpoint.constrained.compiler import GrammarCompiler
    from branchpoint.runtime.engine import Engine
    from branchpoint.runtime.generation import TokenTable
    from branchpoint.runtime.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(None, shape.vocabulary_size, shape.eos_token_ids)
    table = TokenTable(shape.vocabulary_size, frozenset(tokenizer.eos_token_ids), tokenizer.special_ids, tokenizer.token_bytes)
    compiler = GrammarCompiler(tokenizer.vocabulary)
    cacheless = msgspec.structs.replace(config, radix_cache=False)
    return Engine(config, runner, compiler, table, shape.context_length), Engine(
        cacheless, runner, compiler, table, shape.context_length
    )


def _check_sizes(dry: bool) -> "list[Sizes]":
    from benchmarks.kernel_cases import Sizes

    if dry:
        return [Sizes(5, 96, 80, 4, 2, 32, 300, 48, 3)]
    return [Sizes(300, 4096, 14336, 32, 8, 128, 128256, 1000, 8), Sizes(77, 1024, 3072, 16, 8, 128, 151936, 333, 5)]


def _timed_sizes(dry: bool) -> "Sizes":
    from benchmarks.kernel_cases import Sizes

    return _check_sizes(dry)[0] if dry else Sizes(8192, 4096, 14336, 32, 8, 128, 128256, 4096, 64)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options ask for; the exit status, 1 where a kernel is wrong or a workload broke."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, kernels in Triton's interpreter")
    parser.add_argument("--parts", default="kernels,serve")
    parser.add_argument("--models", default="llama8b,qwen06b")
    parser.add_argument("--workloads", default="W1,W2,W3,W4,W5")
    parser.add_argument("--budget", type=float, default=450, help="seconds after which no further workload begins")
    parser.add_argument("--json", action="store_true", help="no table")
    options = parser.parse_args(arguments)
    if options.dry:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
    elif not torch.cuda.is_available():
        print("benchmarks.gpu needs a CUDA device; --dry tries the script without one.", file=sys.stderr)
        return 2
    report = Report(json_only=options.json)
    device = torch.device("cpu" if options.dry else "cuda")
    run = _Run(report, device, frozenset(options.workloads.split(",")), options.dry, time.perf_counter() + options.budget)
    parts = options.parts.split(",")
    if "kernels" in parts:
        if not check_kernels(run):
            return 1
        with torch.inference_mode():
            time_kernels(run)
    shapes = {"tiny": TINY} if options.dry else {"llama8b": LLAMA, "qwen06b": QWEN}
    for name, shape in shapes.items() if "serve" in parts else ():
        if (options.dry or name in options.models.split(",")) and run.has_time(name):
            with tempfile.TemporaryDirectory() as folder:
                serve_model(run, name, shape, Path(folder))
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()  # the next one's pool is sized from what is free
    report.close()
    return 1 if run.broken else 0


if __name__ == "__main__":
    sys.exit(main())
