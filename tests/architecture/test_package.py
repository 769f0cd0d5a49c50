"""The wheel and the sdist hold every module, and the wheel imports from outside the checkout."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("lang", "runtime", "radix", "kernels", "constrained")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    return out


def modules() -> set[str]:
    rooms = {f"branchpoint/{path.relative_to(ROOT)}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    page = {f"branchpoint/{path.relative_to(ROOT)}" for path in (ROOT / "runtime/serving/page").iterdir()}
    own = {f"branchpoint/{path.name}" for path in (ROOT / "src/branchpoint").glob("*.py")} | {"branchpoint/py.typed"}
    return rooms | page | own


def test_wheel_holds_every_module_and_imports_elsewhere(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert modules() <= set(archive.namelist())
        archive.extractall(tmp_path)
    code = "import branchpoint, branchpoint.radix.tree, branchpoint.lang.state; print(branchpoint.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert str(tmp_path) in done.stdout


def test_sdist_holds_every_module(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"src/{module}" for module in modules()} <= names
