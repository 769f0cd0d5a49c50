"""What is installed for users is what the code imports, no more and no less."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("lang", "runtime", "radix", "kernels", "constrained", "src/branchpoint")
MODULES = {"pyzmq": "zmq"}
"""Distributions whose module has another name."""
THROUGH = {
    "starlette": "fastapi",
    "tokenizers": "transformers",
    "huggingface_hub": "transformers",
    "typing_extensions": "pydantic",
    "triton": "torch",
}
"""Modules of distributions that another one brings, by design."""


def imported() -> set[str]:
    """The top names of all absolute imports, those inside functions too."""
    names = set[str]()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names.update(alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"branchpoint", "_sre"}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = (re.split(r"[^\w.-]", requirement)[0] for requirement in project["dependencies"])
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def test_every_dependency_is_imported() -> None:
    assert declared() - imported() == set()


def test_every_import_is_of_a_dependency() -> None:
    assert imported() - declared() - THROUGH.keys() == set()
    assert {THROUGH[name] for name in THROUGH.keys() & imported()} <= declared()
