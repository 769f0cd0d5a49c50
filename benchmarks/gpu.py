"""The GPU path: kernels checked, then timed against their floors; serving workloads beside vLLM's figures; one table.

    python -m benchmarks.gpu                      # on a machine with a GPU, under 8 minutes
    python -m benchmarks.gpu --dry                # tiny shapes on a CPU, kernels in Triton's interpreter: tries the script itself
    python -m benchmarks.gpu --models qwen06b --workloads W1,W3 --peer FOLDER    # vLLM, from FOLDER/go.sh, in the same run

Stops with status 1 where a kernel is wrong. Each model is served by a process of its own, which compiles its kernels anew, and by
another one from where something broke: the exit status is 3 then. What was taken by then is also in OUT/gpu.jsonl.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_peer import PEER, RECORDED, START_UP, measure_peer
from benchmarks.report import Figure, Report

__all__ = ["main"]

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
SHAPES = {"llama8b": LLAMA, "qwen06b": QWEN, "tiny": TINY}

WRONG, BROKEN = 1, 3
"""Exit statuses: a kernel is wrong; something broke, the other figures are there."""

PEER_SECONDS = 180.0
GRACE = 20.0
"""Seconds after which a process that was to begin nothing further is ended."""

LOWER = ("s", "ms", "µs")
"""Units of which less is better."""


class _Child:
    """This script with other options in a process of its own, which is ended after `seconds`. Kernels are compiled anew there."""

    def __init__(self, options: Sequence[str], seconds: float) -> None:
        self._options, self._seconds = options, seconds
        self.status = 0

    def lines(self) -> Iterator[str]:
        """What it prints, as it does; `status` is there afterwards."""
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"TRITON_CACHE_DIR": cache}
            command = [sys.executable, "-m", "benchmarks.gpu", *self._options]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as process:
                timer = threading.Timer(self._seconds, _end, [process])
                timer.start()
                assert process.stdout is not None, "it was asked for"
                try:
                    yield from process.stdout
                    self.status = process.wait()
                finally:
                    timer.cancel()
                    _end(process)


def _entry(line: str) -> dict[str, Any]:
    """What a line tells; nothing where it is some library's."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started: what outlives it would hold the device and the pipe."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(slots=True)
class _Whole:
    """The whole run: starts a process for each part, and tells what they told."""

    report: Report
    deadline: float
    dry: bool = False
    peer: Path | None = None
    broken: bool = False
    peers: dict[str, dict[str, float]] = field(default_factory=lambda: dict(RECORDED))

    def kernels(self) -> bool:
        """Check and time all kernels; False where one is wrong."""
        status, _ = self._run(["--parts", "kernels"], "")
        if status not in (0, BROKEN):
            why = "one is wrong" if status == WRONG else f"their process ended with status {status}"
            self.report.skip("gpu", "kernels", why)
        self.broken |= status != 0
        return status in (0, BROKEN)

    def serve(self, model: str, workloads: Sequence[str]) -> None:
        """All workloads of a model, in another process after each that breaks."""
        left = list(workloads)
        if self.peer is not None and self._has_time(f"{model}, {PEER}"):
            self.peers[model] = RECORDED.get(model, {}) | measure_peer(
                self.peer, model, min(PEER_SECONDS, 30 + self.deadline - time.monotonic())
            )
        while left and self._has_time(f"{model} {left[0]}"):
            status, begun = self._run(["--parts", "serve", "--models", model, "--workloads", ",".join(left)], model)
            if status == 0:
                return
            self.broken = True
            if status != BROKEN:
                self.report.skip("gpu", f"{model} {begun or ''}".strip(), f"its process ended with status {status}")
            if begun is None:
                return  # it can't even start
            left = left[left.index(begun) + 1 :]

    def _has_time(self, what: str) -> bool:
        if time.monotonic() < self.deadline:
            return True
        self.report.skip("gpu", what, "no time left")
        return False

    def _run(self, options: Sequence[str], model: str) -> tuple[int, str | None]:
        """Relay what a process tells: its status, and the workload that it began last."""
        begun = None
        left = max(1.0, self.deadline - time.monotonic())
        child = _Child([*options, "--here", "--budget", f"{left:.0f}", *(["--dry"] if self.dry else [])], left + GRACE)
        for line in child.lines():
            entry = _entry(line)
            if "begins" in entry:
                begun = entry["begins"]
            elif "skipped" in entry:
                self.report.skip(entry["bench"], entry["peer"], entry["skipped"])
            elif "case" in entry:
                self.report.add(self._beside(model, entry))
        return child.status, begun

    def _beside(self, model: str, entry: dict[str, Any]) -> Figure:
        """A figure as it was told, beside the peer's where there is one and it has no other."""
        entry.pop("ratio")
        figure = Figure(**entry, lower_is_better=entry["unit"] in LOWER)
        if figure.peer is not None or self.dry:
            return figure
        case = figure.case.removeprefix(f"{model} ")
        value = START_UP if case.startswith("start-up") else self.peers.get(model, {}).get(case[:2])
        return figure if value is None else replace(figure, peer=PEER, peer_value=value)


def _here(options: argparse.Namespace) -> int:
    """The parts that are asked for, in this process; the exit status."""
    if options.dry:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton
    import torch

    from benchmarks import gpu_parts

    device = torch.device("cpu" if options.dry else "cuda")
    part = gpu_parts.Part(Report(json_only=True), device, options.dry, time.perf_counter() + options.budget)
    complete = True
    if "kernels" in options.parts:
        if not gpu_parts.check_kernels(part):
            return WRONG
        with torch.inference_mode():
            complete = gpu_parts.time_kernels(part)
            complete &= gpu_parts.time_sharing(part)
    for name in options.models if "serve" in options.parts else ():
        complete &= gpu_parts.serve_model(part, name, SHAPES[name], options.workloads)
    return 0 if complete else BROKEN


def _listed(text: str) -> list[str]:
    return text.split(",")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, kernels in Triton's interpreter")
    parser.add_argument("--parts", type=_listed, default=["kernels", "serve"])
    parser.add_argument("--models", type=_listed, help="llama8b,qwen06b where nothing is said")
    parser.add_argument("--workloads", type=_listed, default=["W1", "W2", "W3", "W4", "W5", "host"])
    parser.add_argument("--budget", type=float, default=450, help="seconds after which no further workload begins")
    parser.add_argument("--peer", type=Path, help="a folder whose go.sh installs and runs vLLM, to measure it in the same run")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="where gpu.jsonl goes; the variable OUT, if set")
    parser.add_argument("--json", action="store_true", help="no table")
    parser.add_argument("--here", action="store_true", help="in this process, as the script runs itself for each part")
    options = parser.parse_args(arguments)
    options.models = options.models or (["tiny"] if options.dry else ["llama8b", "qwen06b"])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options ask for; the exit status: 1 where a kernel is wrong, 2 without a GPU, 3 where something broke."""
    options = _options(arguments)
    if not options.dry and not _has_gpu():
        print("benchmarks.gpu needs a CUDA device; --dry tries the script without one.", file=sys.stderr)
        return 2
    if options.here:
        return _here(options)
    kept = None if options.out is None else Path(options.out) / "gpu.jsonl"
    report = Report(json_only=options.json, kept=kept)
    whole = _Whole(report, time.monotonic() + options.budget, options.dry, options.peer)
    if "kernels" in options.parts and not whole.kernels():
        return WRONG
    for model in options.models if "serve" in options.parts else ():
        whole.serve(model, options.workloads)
    report.close()
    return BROKEN if whole.broken else 0


def _has_gpu() -> bool:
    from ctypes import CDLL

    try:
        CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
