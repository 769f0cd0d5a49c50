"""Every constraint that is made to hurt is refused or harmless, and the next one is compiled as ever."""

from collections.abc import Iterator

import pytest

from benchmarks.mask_corpus import HOSTILE
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.mask import allocate
from branchpoint.constrained.spec import Regex
from branchpoint.runtime.tokenizer import load_tokenizer

QUICK = ("nothing", "objects 3,000 deep", "a dynamic circle", "repeats of repeats", "a rule of itself", "a billion items")


@pytest.fixture(scope="module")
def small() -> Iterator[GrammarCompiler]:
    limits = CompilerLimits(trial_seconds=0.3, trial_bytes=1 << 28)
    compiler = GrammarCompiler(load_tokenizer(None, 300, ()).vocabulary, 1, limits)
    yield compiler
    compiler.close()


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE])
def test_a_hostile_constraint_is_refused_or_harmless(small: GrammarCompiler, name: str) -> None:
    row = allocate(1, 300)[0]
    try:
        matcher = small.compile(HOSTILE[name]()).result(timeout=60).matcher()
        for _ in range(8):
            matcher.fill(row)
            matcher.advance(matcher.forced()[:4] or [next(token for token in range(300) if row[token // 32] >> (token % 32) & 1)])
    except GrammarError as error:
        assert str(error)
    small.compile(Regex(f"after {len(name)}")).result(timeout=60).matcher().fill(row)
    assert row.any()


def test_the_corpus_has_fifty() -> None:
    assert len(HOSTILE) >= 50
