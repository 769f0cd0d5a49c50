"""Constraints that might cost much are compiled on trial first, in a process of their own with limits on time and memory.

Used by the compiler. A grammar library that crashes, searches without an end or eats memory (deep chains of rules, intersections
of patterns) then costs its own caller an error and nobody else anything. The other side is `trial.py`.
"""

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

import msgspec

from branchpoint.constrained.errors import LimitExceeded
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["Sandbox", "Trial", "is_risky"]

_PATIENCE = 60.0  # seconds on the wall; the limit that counts is the process's own CPU time
_LONG_SCHEMA, _LONG_PATTERN = 8192, 1024
_INTERSECTED = 4  # patterns in one schema, which may have to hold together


class Trial(msgspec.Struct, frozen=True):
    """One constraint to be tried."""

    constraint: Constraint
    prefix: bytes


def is_risky(constraint: Constraint) -> bool:
    """Whether compiling `constraint` might take long, much memory or the whole process with it, as its text tells."""
    match constraint:
        case Choice():
            return False
        case Regex(pattern):
            return len(pattern) > _LONG_PATTERN
        case JsonSchema(schema):
            patterns = sum(schema.count(word) for word in ('"pattern', '"multipleOf"'))
            return len(schema) > _LONG_SCHEMA or patterns >= _INTERSECTED
        case Ebnf() | StructuralTag():
            return True


class Sandbox:
    """A process for trials, one at a time, begun at the first. `seconds` of CPU for each, `memory` bytes beyond its start.

    `documents` are those of the compiler. Thread-safe; `close` ends the process.
    """

    def __init__(self, vocabulary: Vocabulary, documents: Mapping[str, object] | None, seconds: float, memory: int) -> None:
        self._vocabulary = vocabulary
        self._documents = documents
        self._seconds = seconds
        self._memory = memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, constraint: Constraint, prefix: bytes) -> None:
        """Return where compiling comes to an end within the limits, be it a refusal. Raises LimitExceeded where it doesn't."""
        message = msgspec.msgpack.encode(Trial(constraint, prefix))
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None, "the process was begun with pipes"
            with contextlib.suppress(BrokenPipeError):
                _send(process.stdin, message)
            ready, _, _ = select.select([process.stdout], [], [], _PATIENCE)
            if ready and process.stdout.read(1):
                return
            self._end()
        raise LimitExceeded(
            f"The constraint took more than {self._seconds:g} s of computing or {self._memory >> 20} MiB to compile, or nests "
            "too deep; make it smaller."
        )

    def close(self) -> None:
        """End the process; a trial under way ends first."""
        with self._lock:
            self._end()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "branchpoint.constrained.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a library's last words about its stack
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the parent; this one ends with its input
            )
            assert self._process.stdin is not None, "the process was begun with pipes"
            vocabulary = self._vocabulary
            shape = (vocabulary.tokens, vocabulary.special, vocabulary.eos, vocabulary.size)
            with contextlib.suppress(BrokenPipeError):
                _send(self._process.stdin, pickle.dumps((shape, self._documents, self._seconds, self._memory)))
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with process, contextlib.suppress(BrokenPipeError):  # closes the pipes and waits
            pass


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "little") + message)
    pipe.flush()
