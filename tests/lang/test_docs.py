"""The examples of the docs about the language: those marked `run` do what they say, the others run on small stand-ins."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import branchpoint as bp
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.process import EngineThread, build_engine
from branchpoint.runtime.serving.gateway import Loaded
from tests.lang.http_site import Site

DOCS = Path(__file__).parents[2] / "docs" / "language.md"
COMING = DOCS.parent / "coming-from.md"
FENCED = re.compile(r"^```python( run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [block for page in (DOCS, COMING) for block in FENCED.findall(page.read_text())]
RUNNABLE = [code for mark, code in BLOCKS if mark]
ELSEWHERE = [code for mark, code in BLOCKS if not mark and "mcp" not in code]  # a server of tools is in test_tools.py


def test_the_page_has_examples() -> None:
    assert len(RUNNABLE) > 12


@pytest.mark.parametrize("code", [code for _, code in BLOCKS], ids=range(len(BLOCKS)))
def test_every_example_is_python(code: str) -> None:
    assert compile(code, str(DOCS), "exec") is not None


@pytest.mark.parametrize("code", RUNNABLE, ids=range(len(RUNNABLE)))
def test_runnable_examples_run(code: str) -> None:
    names: dict[str, object] = {"__name__": "language_example"}
    exec(compile(code, str(DOCS), "exec"), names)
    assert bp in (names.get("bp"), names.get("sgl"))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    loaded = build_engine(EngineConfig(model="dummy:llama", context_length=512, num_pages=128, threads=1, grammar_workers=1))
    with bp.Engine.around(EngineThread(loaded), loaded.tokenizer) as engine:
        site = Site(Loaded(engine.backend.client, engine.tokenizer, ("dummy",), 8))
        yield site
        site.close()


@pytest.mark.parametrize("code", ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_examples_of_engines_and_servers_run(code: str, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    names: dict[str, object] = {"__name__": "language_example"}
    for program in ("def capital(", "compiled = triage"):
        exec(next(block for block in RUNNABLE if program in block), names)
    for written, meant in (
        ("smollm2", "dummy:llama"),
        ('8000")', '8000", api_key="secret")'),
        ("http://127.0.0.1:8000", site.url),
    ):
        code = code.replace(written, meant)
    exec(compile(code, str(DOCS), "exec"), names)
    assert "run" in names or "remote" in names or isinstance(names["backend"], bp.OpenAI)


def test_what_is_promised_to_those_who_come_from_elsewhere_is_there() -> None:
    """Every `bp.name` of the tables exists, and each framework has an example that runs."""
    page = COMING.read_text()
    assert [
        name for name in set(re.findall(r"\b(?:bp|sgl)\.(\w+)", page)) - {"token_length_normalized"} if not hasattr(bp, name)
    ] == []
    sections = page.split("\n## ")[1:]
    assert len(sections) == 6 and all("```python run" in section for section in sections)


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
