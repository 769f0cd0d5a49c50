"""Masks beside the peers' on public schemas, the official test suite and reported faults: `python -m benchmarks.masks`.

Needs the folder of the harness (option `--harness`, by default `shared/maskbench` beside the checkout) and is skipped without it.
The harness runs each engine in a process of its own, through `benchmarks/mask_adapter.py` for ours. `--parts` chooses.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mask_adapter import make
from benchmarks.mask_hostile import measure_hostile
from benchmarks.mask_steps import load_harness, measure_steps
from benchmarks.report import Figure, Report

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
ADAPTER = ROOT / "benchmarks" / "mask_adapter.py"
PEERS = {"llguidance": "llguidance", "xgrammar": "xgrammar", "outlines_core": "outlines_core"}  # the harness's name: package
PARTS = ("dev", "suite", "reported", "steps", "hostile")
Measured = dict[str, tuple[str, float, bool]]
"""By case: unit, value, and whether lower is better."""


def run(harness: Path, part: str, engine: str | None, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows that the harness writes for one engine (None: ours)."""
    script = {"dev": "run", "suite": "suite", "reported": "reported"}[part]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.jsonl"
        command = [sys.executable, str(harness / f"{script}.py"), "--engine", engine or "branchpoint", "--out", str(out)]
        command += [] if engine else ["--adapter", str(ADAPTER)]
        command += ["--wall-factor", "10", "--timeout", str(options.timeout)]
        if part == "dev":
            command += ["--split", options.split] + (["--limit", str(options.limit)] if options.limit else [])
        if part == "suite":
            command += ["--drafts", options.drafts]
        subprocess.run(command, cwd=harness, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return [json.loads(line) for line in out.read_text().splitlines()]


def dev_figures(rows: list[dict[str, Any]]) -> Measured:
    """Schemas passed, refused and wrong; compile and mask times of those that compiled."""
    ran = [row for row in rows if "tests" in row]
    accepted_wrongly = sum(test["accepted"] and not test["valid"] for row in ran for test in row["tests"])
    passed = sum(all(test["accepted"] == test["valid"] for test in row["tests"]) for row in ran)
    figures: Measured = {
        "dev passed": ("schemas", passed, False),
        "dev refused": ("schemas", sum("compile_error" in row for row in rows), True),
        "dev wrong accepts": ("instances", accepted_wrongly, True),
        "dev crashes, timeouts": ("schemas", sum("compile_error" not in row for row in rows) - len(ran), True),
    }
    first = np.array([row["ttfm_us"] for row in ran]) / 1e3
    masks = np.concatenate([row["mask"] for row in ran]) / 10
    whole = np.concatenate([row["cpu"] for row in ran]) / 10  # the token asked about and taken, too
    for percent in (50, 99):
        figures[f"compile and first mask p{percent}"] = ("ms", float(np.percentile(first, percent)), True)
        figures[f"mask p{percent}"] = ("us", float(np.percentile(masks, percent)), True)
        figures[f"mask, question and step p{percent}"] = ("us of CPU", float(np.percentile(whole, percent)), True)
    return figures


def suite_figures(rows: list[dict[str, Any]]) -> Measured:
    """Verdicts of the official test suite by draft and part."""
    figures: Measured = {}
    for draft, part in sorted({(row["draft"], row["part"]) for row in rows}):
        verdicts = Counter(each for row in rows if (row["draft"], row["part"]) == (draft, part) for each in row["verdicts"])
        name = f"{draft} {part} ({verdicts.total()} tests)"
        figures[f"{name} passed"] = ("tests", verdicts["pass"], False)
        figures[f"{name} refused"] = ("tests", verdicts["unsupported"], True)
        figures[f"{name} wrong accepts"] = ("tests", verdicts["wrong_accept"], True)
    return figures


def reported_figures(rows: list[dict[str, Any]]) -> Measured:
    """Reported faults that are right here, and those that aren't."""
    right = sum(row["verdict"] in (["ok"], ["refused-ok"]) for row in rows)
    wrong = sum(row["verdict"] not in (["ok"], ["refused-ok"]) and not row["policy"] for row in rows)
    return {"reported right": ("cases", right, False), "reported wrong, not by policy": ("cases", wrong, True)}


def measure(harness: Path, part: str, engine: str | None, options: argparse.Namespace) -> Measured:
    """One part through one engine."""
    if part == "steps":
        return measure_steps(harness, engine)
    if part == "hostile":
        if engine:
            return {}  # a peer has no limits that could be measured beside ours
        with contextlib.closing(make(load_harness(harness / "harness.py", "mask_harness").Ctx())) as adapter:
            return measure_hostile(adapter.compiler, adapter.vocabulary)
    judge = {"dev": dev_figures, "suite": suite_figures, "reported": reported_figures}[part]
    return judge(run(harness, part, engine, options))


def pairs(ours: Measured, peer: str | None, theirs: Measured) -> Iterator[Figure]:
    """Our figures, each beside the peer's on the same case."""
    for case, (unit, value, lower) in ours.items():
        beside = theirs[case][1] if case in theirs else None
        yield Figure("masks", case, unit, value, peer if beside is not None else None, beside, lower_is_better=lower)


def main() -> None:
    """Run the harness through ours and every peer that is installed, and print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masks", description=__doc__)
    parser.add_argument("--harness", type=Path, default=ROOT.parent / "shared" / "maskbench", help="folder of the harness")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"any of {','.join(PARTS)}")
    parser.add_argument("--peers", default="llguidance", help=f"any of {','.join(PEERS)}, or nothing")
    parser.add_argument("--split", default="dev.jsonl.gz", help="file of schemas in the harness's folder")
    parser.add_argument("--drafts", default="draft2020-12,draft7", help="drafts of the official suite")
    parser.add_argument("--order", choices=("any", "declared"), default="any", help="in which keys may come, in ours")
    parser.add_argument("--fill", choices=("loose", "whole"), default="loose", help="how rows are filled, in ours")
    parser.add_argument("--limit", type=int, help="schemas of the split to run")
    parser.add_argument("--timeout", type=float, default=20, help="CPU seconds that one schema may take")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    os.environ |= {"BRANCHPOINT_MASK_ORDER": options.order, "BRANCHPOINT_MASK_FILL": options.fill}  # the harness hands nothing on
    report = Report(json_only=options.json)
    if not (options.harness / "harness.py").exists():
        report.skip("masks", "all", f"no harness at {options.harness}")
        return
    peers = []
    for peer in filter(None, options.peers.split(",")):
        found = subprocess.run([sys.executable, "-c", f"import {PEERS[peer]}"], capture_output=True, check=False).returncode == 0
        peers += [peer] if found else []
        if not found:
            report.skip("masks", peer, "not installed in this environment")
    for part in options.parts.split(","):
        ours = measure(options.harness, part, None, options)
        for figure in () if peers else pairs(ours, None, {}):
            report.add(figure)
        for peer in peers:
            for figure in pairs(ours, peer, measure(options.harness, part, peer, options)):
                report.add(figure)
    report.close()


if __name__ == "__main__":
    main()
