"""The examples of docs/language.md: all are Python, and those marked `run` do what they say."""

import re
from pathlib import Path

import pytest

import branchpoint as bp

DOCS = Path(__file__).parents[2] / "docs" / "language.md"
BLOCKS = re.findall(r"^```python( run)?\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
RUNNABLE = [code for mark, code in BLOCKS if mark]


def test_the_page_has_examples() -> None:
    assert len(RUNNABLE) > 12


@pytest.mark.parametrize("code", [code for _, code in BLOCKS], ids=range(len(BLOCKS)))
def test_every_example_is_python(code: str) -> None:
    assert compile(code, str(DOCS), "exec") is not None


@pytest.mark.parametrize("code", RUNNABLE, ids=range(len(RUNNABLE)))
def test_runnable_examples_run(code: str) -> None:
    names: dict[str, object] = {"__name__": "language_example"}
    exec(compile(code, str(DOCS), "exec"), names)
    assert names["bp"] is bp


def test_every_public_name_that_programs_use_is_told_of() -> None:
    text = DOCS.read_text()
    infrastructure = {
        "Backend",
        "BackendLike",
        "BranchpointError",
        "ChoicesMethod",
        "Expr",
        "Fork",
        "Meta",
        "Program",
        "Report",
        "Run",
        "Runtime",
    }
    edges = {name for name in bp.__all__ if name.endswith(("_begin", "_end"))} - {"total_with_end"}
    missing = [name for name in bp.__all__ if name not in infrastructure | edges and name not in text]
    assert not missing
