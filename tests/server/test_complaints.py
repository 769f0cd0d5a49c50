"""docs/complaints.md: each complaint has its tests, and each that is named is there, and not only among the slow ones."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "complaints.md").read_text(encoding="utf-8")
NUMBERS = 46


def complaints() -> dict[int, list[tuple[str, str]]]:
    """The tests that each complaint names, as file and function."""
    parts = re.split(r"^(\d+)\. ", PAGE, flags=re.MULTILINE)[1:]
    return {
        int(number): [(file, name) for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", text)]
        for number, text in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def functions(file: str) -> dict[str, bool]:
    """The test functions of a file, and whether each is slow."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: any("slow" in ast.unparse(mark) for mark in node.decorator_list) for node in found}


def test_every_complaint_has_tests_that_are_there_and_one_that_the_gate_runs() -> None:
    told = complaints()
    assert list(told) == list(range(1, NUMBERS + 1))
    for number, tests in told.items():
        assert tests, f"complaint {number} names no test"
        missing = [f"{file}::{name}" for file, name in tests if name not in functions(file)]
        assert not missing, f"complaint {number}: {missing}"
        assert not all(functions(file)[name] for file, name in tests), f"complaint {number} has slow tests only"
