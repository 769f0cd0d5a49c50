"""What LoRA adapters cost a decode step: `python -m benchmarks.adapters`, SmolLM2 on a CPU, random adapters of all matrices.

Each case is a batch that decodes; beside it stands the same batch on an engine that takes no adapters. `none` has no adapter in
it, `one` the same one for all rows, `mixed` another one for each of up to four groups, `half` one for every second row.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import safetensors.torch
import torch

from benchmarks.report import Figure, Report
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.lora.adapter import CONFIG, WEIGHTS
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.messages import Call
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.linears import layer_linears
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.weights.loader import model_shape

__all__ = ["main"]

NAMES = ("a", "b", "c", "d")
CASES = {"none": ("",), "one": ("a",), "mixed": NAMES, "half": ("", "a")}
PROMPT, OUTPUT = 32, 32


def write_adapter(folder: Path, shape: ModelConfig, rank: int) -> None:
    """A random adapter of all matrices."""
    tensors = {}
    for layer in range(shape.num_layers):
        for linear in layer_linears(shape).values():
            for name, size in linear.outputs.items():
                prefix = f"base_model.model.model.layers.{layer}.{linear.module}.{name}"
                tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, linear.inputs, dtype=torch.bfloat16) * 0.01
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(size, rank, dtype=torch.bfloat16) * 0.01
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))


def decode(loaded: LoadedEngine, adapters: list[str]) -> float:
    """Tokens a second of a batch of one sequence for each of `adapters`, once all of them decode."""
    engine = loaded.engine
    for at, adapter in enumerate(adapters):
        sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
        engine.submit(Call(str(at), tuple(range(5 + at, 5 + at + PROMPT)), sampling, adapter=adapter))
    for _ in range(-(-PROMPT * len(adapters) // 512) + 1):
        engine.step()
    before, began = engine.stats(), time.perf_counter()
    while engine.has_work:
        engine.step()
    return (engine.stats().totals.completion_tokens - before.totals.completion_tokens) / (time.perf_counter() - began)


def main() -> None:
    """Parse the options and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report = Report(json_only=options.json)
    base = EngineConfig(model=options.model, threads=options.threads, num_pages=512, radix_cache=False)
    with TemporaryDirectory() as root:
        for name in NAMES:
            write_adapter(Path(root, name), model_shape(base), options.rank)
        plain = build_engine(base)
        taking = EngineConfig(
            model=options.model,
            threads=options.threads,
            num_pages=512,
            radix_cache=False,
            adapters={name: str(Path(root, name)) for name in NAMES},
        )
        adapted = build_engine(taking, plain.model)
    for batch in options.batches:
        for case, cycle in CASES.items():
            if len(cycle) > batch:
                continue
            rows = [cycle[at % len(cycle)] for at in range(batch)]
            rates: dict[str, list[float]] = {"own": [], "other": []}
            for run in range(options.runs + 1):
                for which in ("own", "other") if run % 2 else ("other", "own"):  # neither is always the first
                    rate = decode(adapted, rows) if which == "own" else decode(plain, [""] * batch)
                    rates[which] += [rate] if run else []
            own, other = median(rates["own"]), median(rates["other"])
            report.add(Figure("adapters", f"{case}, batch {batch}", "tok/s", own, "without adapters", other))
    for loaded in (adapted, plain):
        loaded.engine.close()
        loaded.close()
    report.close()


if __name__ == "__main__":
    main()
