"""Three minutes of mixed work with clients that go, wrong bodies, and an engine that is killed: nothing is lost or left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_outlasts_mixed_work_and_a_dead_engine() -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "180"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
