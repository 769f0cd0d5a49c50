"""Schemas, patterns and grammars that are made to hurt: how long each takes, and how long it keeps another thread waiting.

Used by `benchmarks.masks`, and by a test that holds each of them to an answer.
"""

import gc
import hashlib
import random
import statistics
import threading
import time

import numpy as np

from benchmarks.mask_corpus import HOSTILE
from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import GrammarError, MatcherError
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.constrained.spec import Ebnf
from branchpoint.constrained.vocabulary import Vocabulary
from branchpoint.runtime.sampler import PATIENCE

__all__ = ["measure_hostile"]

LONGEST_ANSWER = 60.0
WALKS, TOKENS = 2, 40
PAUSE = 0.001
CALLS = 20
WORK = bytes(200_000)  # about a tenth of a millisecond of hashing


def measure_hostile(compiler: GrammarCompiler, vocabulary: Vocabulary) -> dict[str, tuple[str, float, bool]]:
    """The slowest answer, the most by which another thread was delayed meanwhile, the longest token, the refusals."""
    compiler.compile(Ebnf('start: "a"')).result(LONGEST_ANSWER)
    gc.collect()
    gc.freeze()  # as the engine's process does when it is ready
    refused = 0
    answers: dict[str, float] = {}
    tokens: dict[str, float] = {}
    delays: dict[str, float] = {}
    for name, make in HOSTILE.items():
        constraint = make()
        with _Stream() as stream:
            started = time.perf_counter()
            error = compiler.compile(constraint).exception(LONGEST_ANSWER)
            answers[name] = time.perf_counter() - started
        delays[name] = stream.delay
        refused += isinstance(error, GrammarError)
        if error is None:
            tokens[name] = _longest_token(compiler.compile(constraint).result(), vocabulary)
    gc.unfreeze()
    slowest, worst, longest = (max(each, key=each.__getitem__) for each in (answers, delays, tokens))
    return {
        "hostile, refused": ("constraints", refused, False),
        "hostile, not refused": ("constraints", len(HOSTILE) - refused, True),
        f"hostile, slowest answer ({slowest})": ("s", answers[slowest], True),
        f"hostile, longest delay of another thread's step ({worst})": ("ms", delays[worst] * 1e3, True),
        f"hostile, longest token, mask and step ({longest})": ("ms of CPU", tokens[longest] * 1e3, True),
    }


def _longest_token(grammar: CompiledGrammar, vocabulary: Vocabulary) -> float:
    """The most CPU seconds that one token took of random walks: its mask, the questions about it, the step and what is forced."""
    chance, row, longest = random.Random(0), allocate(1, vocabulary.size)[0], 0.0
    for _ in range(WALKS):
        matcher = grammar.matcher()
        for _ in range(TOKENS):
            started = time.thread_time()
            try:
                residue = matcher.fill_loosely(row)
                allowed = iterate_allowed(row)
                token = chance.choice(allowed)
                refusals = 0
                while residue is not None and not residue.allows(int(token)):
                    refusals += 1
                    if refusals == PATIENCE:  # as the sampler does
                        residue.narrow(row)
                        allowed = np.intersect1d(allowed, iterate_allowed(row))
                    allowed = allowed[allowed != token]
                    token = chance.choice(allowed)
                if matcher.advance((int(token),)) != 1 or matcher.finished:
                    break
                matcher.forced()
            except (MatcherError, IndexError):  # its caller's error, or nothing that may follow
                break
            finally:
                longest = max(longest, time.thread_time() - started)
    return longest


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
