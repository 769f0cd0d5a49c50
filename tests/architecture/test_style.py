"""The budgets of the code's style, held by reading the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("lang", "runtime", "radix", "kernels", "constrained")
SOURCES = sorted(
    [path for room in ROOMS for path in (ROOT / room).rglob("*.py")] + list((ROOT / "src/branchpoint").glob("*.py")),
)
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
MAX_DOCSTRING_LINES = 5
BROAD = {"Exception", "BaseException"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_sources_are_found() -> None:
    assert len(SOURCES) > 40


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_and_function_lengths(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert path.stem not in {"utils", "helpers", "common", "misc"}
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long, f"functions over {MAX_FUNCTION_LINES} lines: {long}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_module_opens_with_what_it_is_for(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstring = ast.get_docstring(tree)
    assert docstring
    if path.name not in {"__init__.py", "errors.py"}:
        assert len(docstring.splitlines()) <= MAX_DOCSTRING_LINES


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_public_names_are_listed_and_real(path: Path) -> None:
    tree = ast.parse(path.read_text())
    listed: list[str] | None = None
    defined = set[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            listed = [str(name) for name in ast.literal_eval(node.value)]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
    public = {name for name in defined if not name.startswith("_")}
    if path.name in {"__init__.py", "__main__.py"}:
        return
    assert listed is not None, "a module lists what it offers in __all__"
    assert public <= set(listed), f"public, but not in __all__: {sorted(public - set(listed))}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_mutable_module_state_and_no_silent_catching(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Global):
            pytest.fail(f"line {node.lineno}: global statement")
        if isinstance(node, ast.ExceptHandler) and (
            node.type is None or (isinstance(node.type, ast.Name) and node.type.id in BROAD)
        ):
            assert "#" in lines[node.lineno - 1], f"line {node.lineno}: a broad except has its reason on the line"
    for number, line in enumerate(lines, 1):
        for ignore in ("type: ignore", "noqa"):
            if f"# {ignore}" in line:
                assert line.count("#") > 1 or "  # " in line.split(ignore, 1)[1], (
                    f"line {number}: an ignore has its reason on the line"
                )


def test_no_work_is_left_open() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error")
    found = [f"{name_of(path)}: {word}" for path in SOURCES for word in words if word in path.read_text()]
    assert not found
