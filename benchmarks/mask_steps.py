"""The work of masks in a step whose pass runs elsewhere: rows of a batch, over a dozen schemas. Used by `benchmarks.masks`.

Each row walks a valid instance of one of the first schemas of the split that the engine takes. Rows are filled on threads,
as the engine has them filled, while the thread of the steps waits for the pass; then each row's token is asked about and taken.
What of it a step of our engine waits for, `mask_engine.py` measures on the same texts.
"""

import gzip
import importlib.util
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.mask_adapter import Adapter, AdapterMatcher, LooseRow, make
from benchmarks.mask_engine import Text, measure_engine

__all__ = ["load_harness", "measure_steps"]

SCHEMAS = 12
BATCHES = (1, 16, 64)
STEPS = 96
LEAST_TOKENS = 24
WORKERS = 2
FORWARD = 0.010
"""Seconds of a forward pass on a device that leaves the processor alone."""


class Cursor(Protocol):
    """A cursor as the harness's adapters give it."""

    def fresh(self) -> "Cursor": ...

    def mask(self) -> object: ...

    def advance(self, token: int) -> object: ...


class Row:
    """One sequence: its cursor goes through the same tokens again and again."""

    def __init__(self, start: Cursor, tokens: Sequence[int]) -> None:
        self.start, self.tokens = start, tokens
        self.at, self.cursor = 0, start.fresh()
        self.row: object = None

    def fill(self) -> None:
        self.row = self.cursor.mask()

    def step(self) -> None:
        token = self.tokens[self.at]
        if isinstance(self.row, LooseRow):
            assert self.row.allows(token), "the instance is valid"
        self.cursor.advance(token)
        self.at += 1
        if self.at == len(self.tokens):
            self.at, self.cursor = 0, self.start.fresh()


def measure_steps(harness: Path, engine: str | None) -> dict[str, tuple[str, float, bool]]:
    """Milliseconds by which a step takes longer than its forward pass, by batch size, median and 99th percentile.

    For our own (no name) the engine's steps follow.
    """
    module = load_harness(harness / "harness.py", "mask_harness")
    context = module.Ctx()
    made = module.make_engine(engine, None, context) if engine else make(context)
    work = list(itertools.islice(_work(harness, module, context, made), SCHEMAS))
    figures: dict[str, tuple[str, float, bool]] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for batch in BATCHES:
            rows = [Row(*work[number % len(work)][1:]) for number in range(batch)]
            for number, row in enumerate(rows):  # spread over their texts, as sequences of a batch are
                for _ in range(7 * number % len(row.tokens)):
                    row.step()
            bare = float(np.median([_step(pool, [])[0] for _ in range(STEPS)]))
            waits, takes = zip(*(_step(pool, rows) for _ in range(STEPS)), strict=True)
            for case, taken in (
                ("waits for masks", np.array(waits) - bare),
                ("asks about tokens and takes them", np.array(takes)),
            ):
                for percent in (50, 99):
                    value = max(0.0, float(np.percentile(taken, percent)) * 1e3)
                    figures[f"step of {FORWARD * 1e3:.0f} ms at batch {batch} {case}, p{percent}"] = ("ms", value, True)
    if isinstance(made, Adapter):
        texts = list(_texts(made, work))
        figures |= measure_engine(made.vocabulary, texts, BATCHES, FORWARD, truncates=made.whole)
    return figures


def _texts(adapter: Adapter, work: Sequence[tuple[object, Cursor, Sequence[int]]]) -> Iterator[Text]:
    for schema, start, tokens in work:
        assert isinstance(start, AdapterMatcher), "the adapter gives its own cursors"
        yield Text(adapter.constraint(schema), start.grammar, tuple(tokens))


def _step(pool: ThreadPoolExecutor, rows: Sequence[Row]) -> tuple[float, float]:
    """Seconds until a pass and the masks filled behind it are there, and those that the tokens take then."""
    started = time.perf_counter()
    fills = [pool.submit(_fill, rows[first::WORKERS]) for first in range(WORKERS if rows else 0)]
    time.sleep(FORWARD)
    for fill in fills:
        fill.result()
    filled = time.perf_counter()
    for row in rows:
        row.step()
    return filled - started, time.perf_counter() - filled


def _fill(rows: Sequence[Row]) -> None:
    for row in rows:
        row.fill()


def _work(harness: Path, module: Any, context: Any, engine: Any) -> Iterator[tuple[object, Cursor, Sequence[int]]]:
    """Schemas with a valid instance that the engine takes: the schema, the start cursor and the instance's tokens."""
    for line in gzip.decompress((harness / "dev.jsonl.gz").read_bytes()).splitlines():
        case = json.loads(line)
        tokens = [context.encode(module.text_of(test, "default")) for test in case["tests"] if test["valid"]]
        if not tokens or len(tokens[0]) < LEAST_TOKENS:
            continue
        try:
            start = engine.compile(case["schema"])
        except ValueError:
            continue  # refused: the next one is taken instead
        cursor = start.fresh()
        if all(module.allowed(cursor.mask(), token) and cursor.advance(token) is not False for token in tokens[0]):
            yield case["schema"], start, tokens[0]


def load_harness(path: Path, name: str) -> Any:
    """A file of the harness as a module of this process."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} can't be loaded"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
