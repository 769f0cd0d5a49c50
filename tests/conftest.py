"""Fixtures that several rooms' tests share."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before anything imports transformers
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton: kernels run on the CPU, as plain Python


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF of SmolLM2-135M-Instruct that the demo package carries."""
    from branchpoint.runtime.weights.resolve import locate

    path = locate("smollm2").path
    assert path is not None
    return path
