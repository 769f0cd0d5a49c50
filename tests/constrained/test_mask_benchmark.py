"""The masks' benchmark says why it skips, and its adapter answers as the harness asks."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.mask_adapter import Adapter, make
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


def test_without_the_harness_the_benchmark_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.masks", "--harness", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=True)
    assert "no harness at" in json.loads(done.stdout)["skipped"]


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
