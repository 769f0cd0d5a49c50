"""The README's program runs as it is printed, on the model that it names, and prints what it says."""

import contextlib
import io
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.timeout(300)  # with all of the machine's threads, as printed: slow where others use them
def test_the_program_of_the_readme_runs(smollm2_path: Path) -> None:
    (program,) = [part.split("```")[0] for part in README.read_text().split("```python\n")[1:]]
    names: dict[str, object] = {"__name__": "readme"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, str(README), "exec"), names)
    value = names["run"].value  # type: ignore[attr-defined]  # a Run
    assert value["area"] in ("billing", "login", "other") and value["urgency"] in range(1, 6)
    assert isinstance(value["reply"], names["Reply"])  # type: ignore[arg-type]  # the class that the program defines
    assert printed.getvalue().startswith(f"{value}\n") and "total" in printed.getvalue()
