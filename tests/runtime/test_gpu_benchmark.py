"""The benchmark of the GPU path runs from end to end without a GPU, on tiny shapes, and stops at a wrong kernel."""

import json

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("a dry run is for machines without a GPU", allow_module_level=True)

from benchmarks.gpu import main
from branchpoint.kernels import norm


def _cases(capsys: pytest.CaptureFixture[str]) -> set[str]:
    return {json.loads(line)["case"] for line in capsys.readouterr().out.splitlines()}


def test_all_workloads_run_dry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry", "--json", "--parts", "serve"]) == 0
    cases = _cases(capsys)
    assert all(any(f" {workload} " in case for case in cases) for workload in ("W1", "W2", "W4", "W5"))
    assert {"tiny W3 shared prefix", "tiny W3, beside no radix cache"} <= cases


@pytest.mark.slow
def test_all_kernels_are_checked_and_timed_dry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry", "--json", "--parts", "kernels"]) == 0
    assert {"rms_norm (bar 0.85)", "prefill attention (bar 0.55)", "draw, top-k 50, top-p 0.9"} <= _cases(capsys)


def test_a_wrong_kernel_stops_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = norm.rms_norm
    monkeypatch.setattr(norm, "rms_norm", lambda x, weight, eps: right(x, weight, eps) * 1.1)
    monkeypatch.setattr("benchmarks.kernel_cases._attention_cases", lambda *_: ())
    monkeypatch.setattr("benchmarks.kernel_cases._sampling_cases", lambda *_: ())
    assert main(["--dry", "--json"]) == 1
    told = capsys.readouterr()
    assert "WRONG: rms_norm" in told.err and not told.out


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--dry" in capsys.readouterr().err
