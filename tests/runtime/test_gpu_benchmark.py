"""The benchmark of the GPU path runs to its end without a GPU, on tiny shapes; stops at a wrong kernel, outlives what breaks."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("a dry run is for machines without a GPU", allow_module_level=True)

from benchmarks import gpu
from benchmarks.floors import Ceilings, Work
from benchmarks.gpu import main
from benchmarks.gpu_floors import Served, served, serving_work
from benchmarks.gpu_measure import gaps_share
from benchmarks.gpu_peer import peer_figures
from branchpoint.kernels import norm
from branchpoint.runtime.models.config import ModelConfig


def _cases(capsys: pytest.CaptureFixture[str]) -> set[str]:
    return {entry["case"] for line in capsys.readouterr().out.splitlines() if "case" in (entry := json.loads(line))}


def test_all_workloads_run_dry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry", "--here", "--parts", "serve"]) == 0
    cases = _cases(capsys)
    assert all(any(f" {workload} " in case for case in cases) for workload in ("W1", "W2", "W4", "W5"))
    assert {"tiny W3 shared prefix", "tiny W3, beside no radix cache", "tiny W2, beside its floor"} <= cases


@pytest.mark.slow
def test_all_kernels_are_checked_and_timed_dry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry", "--here", "--parts", "kernels"]) == 0
    assert {"rms_norm (bar 0.85)", "prefill attention (bar 0.55)", "draw, top-k 50, top-p 0.9"} <= _cases(capsys)


def test_a_wrong_kernel_stops_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = norm.rms_norm
    monkeypatch.setattr(norm, "rms_norm", lambda x, weight, eps: right(x, weight, eps) * 1.1)
    monkeypatch.setattr("benchmarks.kernel_cases._attention_cases", lambda *_: ())
    monkeypatch.setattr("benchmarks.kernel_cases._sampling_cases", lambda *_: ())
    assert main(["--dry", "--here"]) == 1
    told = capsys.readouterr()
    assert "WRONG: rms_norm" in told.err and not told.out


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--dry" in capsys.readouterr().err


class _Scripted:
    """In place of processes: W2 breaks, W4 takes its process with it; nothing else does."""

    begun: list[list[str]]

    def __init__(self, options: Sequence[str], seconds: float) -> None:
        self.options, self.status = options, 0
        assert float(options[options.index("--budget") + 1]) <= seconds

    def lines(self) -> Iterator[str]:
        if "--workloads" not in self.options:
            return
        workloads = self.options[self.options.index("--workloads") + 1].split(",")
        self.begun.append(workloads)
        yield from ("what a library prints\n", "{'like': 'this'}\n", "7\n")
        for workload in workloads:
            yield json.dumps({"bench": "gpu", "begins": workload})
            if workload in ("W2", "W4"):
                self.status = 3 if workload == "W2" else -11
                return
            case = f"llama8b {workload} one stream"
            yield json.dumps(
                {"bench": "gpu", "case": case, "unit": "ms", "branchpoint": 4.0, "peer": None, "peer_value": None, "ratio": None}
            )


def test_workloads_after_one_that_breaks_are_measured_by_another_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "_has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "_Child", _Scripted)
    monkeypatch.setattr(_Scripted, "begun", [], raising=False)
    assert main(["--json", "--models", "llama8b", "--workloads", "W1,W2,W3,W4,W5", "--out", str(tmp_path)]) == 3
    assert _Scripted.begun == [["W1", "W2", "W3", "W4", "W5"], ["W3", "W4", "W5"], ["W5"]]
    lines = capsys.readouterr().out.splitlines()
    assert (tmp_path / "gpu.jsonl").read_text().splitlines() == lines
    told = [json.loads(line) for line in lines]
    assert [(each["case"], each["peer_value"]) for each in told if "case" in each] == [
        ("llama8b W1 one stream", 4.889), ("llama8b W3 one stream", 1.937), ("llama8b W5 one stream", None),
    ]  # fmt: skip
    assert [each["peer"] for each in told if "skipped" in each] == ["llama8b W4"]


def test_figures_of_the_peer_are_read_from_what_its_script_prints() -> None:
    lines = [
        {"workload": name, "seconds": seconds, "out_tokens": tokens}
        for name, seconds, tokens in (("W1", 1.28, 256), ("W2", 8.0, 80000), ("W3", 1.9, 16384))
    ]
    assert peer_figures("\n".join(["# vllm", *map(json.dumps, lines)])) == {"W1": 5.0, "W2": 10000.0, "W3": 1.9}


def test_floors_of_workloads_count_what_is_shared_once() -> None:
    assert served([(0, 3, 2)]) == Served(steps=2, tokens=4, drawn=2, pairs=10, read=4)
    alone, two = served([(8, 1, 3)]), served([(8, 1, 3), (8, 1, 3)], shared=8)
    assert two.steps == 3 and two.tokens == 2 * alone.tokens and two.read == 2 * alone.read - 2 * 8
    llama = ModelConfig(
        architecture="llama", hidden_size=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128,
        intermediate_size=14336, vocabulary_size=128256, context_length=8192, tied=False,
    )  # fmt: skip
    work = serving_work(llama, served([(0, 128, 256)]), 2)
    assert isinstance(work, Work)
    assert 3.4e-3 < work.seconds(Ceilings(4.28e12, 7.75e14)) / 256 < 3.6e-3, "the limit that the bars were taken from"


def test_only_gaps_that_the_host_makes_count_as_waiting() -> None:
    kernels = [(10.0, 20.0), (21.0, 30.0), (22.0, 26.0), (50.0, 60.0)]
    assert gaps_share(reversed(kernels)) == 20 / 50
    assert gaps_share(kernels[:3]) == 0
