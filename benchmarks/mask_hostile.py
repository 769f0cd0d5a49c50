"""Schemas, patterns and grammars that are made to hurt: how long each takes, and how long it keeps another thread waiting.

Used by `benchmarks.masks`, and by a test that holds each of them to an answer.
"""

import hashlib
import statistics
import threading
import time

from benchmarks.mask_corpus import HOSTILE
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.spec import Ebnf

__all__ = ["measure_hostile"]

LONGEST_ANSWER = 60.0
PAUSE = 0.001
CALLS = 20
WORK = bytes(200_000)  # about a tenth of a millisecond of hashing


def measure_hostile(compiler: GrammarCompiler) -> dict[str, tuple[str, float, bool]]:
    """The slowest answer, the most that a step of another thread was delayed meanwhile, and how many were refused."""
    compiler.compile(Ebnf('start: "a"')).result(LONGEST_ANSWER)
    refused = 0
    answers: dict[str, float] = {}
    delays: dict[str, float] = {}
    for name, make in HOSTILE.items():
        constraint = make()
        with _Stream() as stream:
            started = time.perf_counter()
            refused += isinstance(compiler.compile(constraint).exception(LONGEST_ANSWER), GrammarError)
            answers[name] = time.perf_counter() - started
        delays[name] = stream.delay
    slowest, worst = max(answers, key=answers.__getitem__), max(delays, key=delays.__getitem__)
    return {
        "hostile, refused": ("constraints", refused, False),
        "hostile, not refused": ("constraints", len(HOSTILE) - refused, True),
        f"hostile, slowest answer ({slowest})": ("s", answers[slowest], True),
        f"hostile, longest delay of another thread's step ({worst})": ("ms", delays[worst] * 1e3, True),
    }


class _Stream:
    """A thread that goes through steps as an engine's loop does, and knows by how much the longest took longer than most.

    A step is native calls that let go of Python's lock: whoever holds it then lets the step wait, at each of them anew.
    """

    def __init__(self) -> None:
        self._taken: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @property
    def delay(self) -> float:
        """Seconds."""
        return max(self._taken, default=0.0) - statistics.median(self._taken or [0.0])

    def __enter__(self) -> "_Stream":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE):
            started = time.perf_counter()
            for _ in range(CALLS):
                hashlib.sha256(WORK)
            self._taken.append(time.perf_counter() - started)
