"""What importing the package may load."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "zmq", "fastapi", "uvicorn", "llguidance", "outlines_core", "pydantic")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_the_package_is_light() -> None:
    assert modules_after("import branchpoint").isdisjoint(HEAVY[:4])


def test_radix_needs_the_standard_library_only() -> None:
    loaded = {name.split(".")[0] for name in modules_after("import branchpoint.radix")} - modules_after("pass")
    assert loaded - set(sys.stdlib_module_names) <= {"branchpoint"}


@pytest.mark.parametrize("module", ["branchpoint.lang", "branchpoint.constrained", "branchpoint.runtime.engine"])
def test_rooms_without_tensors_load_no_torch(module: str) -> None:
    assert "torch" not in modules_after(f"import {module}")
