"""The masks' benchmark says why it skips, and its adapter answers as the harness asks."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mask_adapter import Adapter, make
from benchmarks.mask_engine import Text, measure_engine
from benchmarks.masks import main
from branchpoint.constrained.errors import EmptyLanguage
from branchpoint.constrained.mask import is_allowed


class Bytes:
    """A tokenizer of single bytes, with one special id and one end id."""

    vocab: Sequence[bytes | None] = (*(bytes((byte,)) for byte in range(256)), None, None)
    vocab_size = 258
    eos_id = 257
    special_ids = frozenset({256, 257})
    remotes: Mapping[str, object] = {}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


@pytest.fixture(scope="module")
def adapter() -> Iterator[Adapter]:
    with closing(make(Bytes())) as ready:
        yield ready


def test_without_the_harness_the_benchmark_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("BRANCHPOINT_MASK_ORDER", "BRANCHPOINT_MASK_FILL"):
        monkeypatch.setenv(name, "")  # which the benchmark sets
    monkeypatch.setattr(sys, "argv", ["masks", "--harness", str(tmp_path / "none")])
    main()
    assert "no harness at" in json.loads(capsys.readouterr().out)["skipped"]


@pytest.mark.parametrize(
    ("grammar", "kind", "text"),
    [({"type": "integer"}, "json_schema", "12"), ("a+", "regex", "aa"), ('root ::= "x"', "ebnf", "x")],
)
def test_the_adapter_walks_texts_token_by_token(adapter: Adapter, grammar: object, kind: str, text: str) -> None:
    start = adapter.compile(grammar, kind)
    for cursor in (start, start.fresh()):
        assert not cursor.accepts_eos()
        for token in text.encode():
            assert is_allowed(cursor.mask(), token)
            assert cursor.advance(token)
        assert cursor.accepts_eos()
        assert is_allowed(cursor.mask(), 257)
        assert not cursor.advance(256)


def test_the_adapter_raises_what_is_refused(adapter: Adapter) -> None:
    with pytest.raises(EmptyLanguage):
        adapter.compile(False)


@pytest.mark.parametrize("truncates", [False, True])
def test_an_engine_over_a_clock_draws_the_texts_that_it_is_given(adapter: Adapter, truncates: bool) -> None:
    texts = []
    for schema, text in (
        ({"enum": ["long enough", "long ago"]}, '"long ago"'),
        ({"type": "array", "uniqueItems": True}, "[1,2,3]"),
    ):
        start = adapter.compile(schema)
        texts.append(Text(adapter.constraint(schema), start.grammar, tuple(text.encode())))
    figures = measure_engine(adapter.vocabulary, texts, (3,), 0.0005, truncates=truncates)
    assert len(figures) == 9, "three of an engine that drafts nothing, of one that finds nothing, and of one that guesses"
    assert all(unit == "ms" and lower for unit, _, lower in figures.values())
    with pytest.raises(AssertionError):
        measure_engine(adapter.vocabulary, [replace(texts[1], tokens=tuple(b"[1,1]"))], (1,), 0.0005, truncates=truncates)
