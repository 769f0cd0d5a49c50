"""vLLM beside the workloads of `benchmarks.gpu`: its figures from one H200, or taken anew where somebody has it in a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["PEER", "RECORDED", "START_UP", "measure_peer", "peer_figures"]

PEER = "vLLM 0.26"
START_UP = 42.0
"""Seconds."""
RECORDED = {
    "llama8b": {"W1": 4.889, "W2": 8937.0, "W3": 1.937, "W4": 3.995},
    "qwen06b": {"W1": 2.344, "W2": 20630.0, "W3": 1.065, "W4": 1.681},
}
"""W1 in ms a token, W2 in output tokens a second, W3 and W4 in seconds; dummy weights, measured on 2026-11-29."""


def measure_peer(folder: Path, model: str, seconds: float) -> dict[str, float]:
    """The same figures by `folder`/go.sh, which installs vLLM and runs it, in at most so many seconds each. What isn't there by
    then is missing.
    """
    script = ["bash", str(folder / "go.sh")]
    limits = os.environ | {"T": f"{seconds - 10:.0f}", "MPS": "1"}  # the script ends what it started by itself; one try
    try:
        subprocess.run([*script, "install"], stdout=sys.stderr, timeout=seconds, check=True)
        command = [*script, "vllm", "--model", model]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds, env=limits, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"vLLM wasn't measured: {error}", file=sys.stderr)
        return {}
    return peer_figures(told.stdout)


def peer_figures(output: str) -> dict[str, float]:
    """The figures in the lines of JSON that the script prints."""
    found = {}
    for line in output.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            name, seconds, tokens = entry["workload"], entry["seconds"], entry["out_tokens"]
            found[name] = 1e3 * seconds / tokens if name == "W1" else tokens / seconds if name == "W2" else seconds
    return found
