"""Constraints that might cost much are compiled on trial first, in a process of their own with limits on time and memory.

Used by the compiler. A grammar library that crashes, searches without an end, eats memory or keeps Python's lock (deep chains of
rules, intersections of patterns, the algebra of schemas) then costs its own caller an error and nobody else anything. It
comes back prepared, so that little is done twice. The other side, `trial.py`, does each in a fork.
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO

import msgspec

from branchpoint.constrained.errors import GrammarError, LimitExceeded
from branchpoint.constrained.prepared import Prepared
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["Outcome", "RiskyConstraint", "Sandbox", "Trial", "beyond_limits", "is_risky", "receive", "send"]

RiskyConstraint = JsonSchema | Regex | Ebnf | StructuralTag
Outcome = Prepared | GrammarError | None
"""What came of a trial: a constraint made ready, a refusal, or nothing but that it came to an end."""

_PATIENCE = 60.0  # seconds on the wall; the limit that counts is the process's own CPU time
_LONG_SCHEMA, _LONG_PATTERN = 8192, 256
_LONG_ALGEBRA = 1024  # characters of a schema with algebra, which keeps Python's lock
_INTERSECTED = 4  # patterns in one schema, which may have to hold together
_ALGEBRA = ('"not"', '"oneOf"', '"if"')  # what is rewritten by the algebra of schemas
_BRANCHING = (*_ALGEBRA, '"anyOf"', '"allOf"', '"dependentSchemas"')
_MULTIPLIED = 4  # of the latter in one schema, which may multiply


class Trial(msgspec.Struct, frozen=True):
    """One constraint to be tried."""

    constraint: RiskyConstraint
    prefix: str


def is_risky(constraint: Constraint) -> bool:
    """Whether compiling `constraint` might take long, much memory or the whole process with it, as its text tells."""
    match constraint:
        case Choice():
            return False
        case Regex(pattern):
            return len(pattern) > _LONG_PATTERN
        case JsonSchema(schema):
            patterns = sum(schema.count(word) for word in ('"pattern', '"multipleOf"'))
            if len(schema) > _LONG_SCHEMA or patterns >= _INTERSECTED:
                return True
            if not any(word in schema for word in _ALGEBRA):
                return False
            return len(schema) > _LONG_ALGEBRA or sum(schema.count(word) for word in _BRANCHING) >= _MULTIPLIED
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
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, constraint: RiskyConstraint, prefix: str) -> Prepared | None:
        """The constraint made ready where that can be, after compiling came to an end within the limits.

        Raises the GrammarError of what was refused, LimitExceeded of what doesn't end in time.
        """
        message = msgspec.msgpack.encode(Trial(constraint, prefix))
        with self._lock:
            answer = self._ask(message)
        if answer is None:
            raise beyond_limits(self._seconds, self._memory)
        outcome: Outcome = pickle.loads(answer)
        if isinstance(outcome, GrammarError):
            raise outcome
        return outcome

    def _ask(self, message: bytes) -> bytes | None:
        """The process's answer, None where it has ended."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None, "the process was begun with pipes"
        with contextlib.suppress(BrokenPipeError):
            send(process.stdin, message)
        ready, _, _ = select.select([process.stdout], [], [], _PATIENCE)
        answer = receive(process.stdout) if ready else None
        if answer is None:
            self._end()
        return answer

    def begin(self) -> None:
        """Have the process ready for the next trial; takes about a second where there is none."""
        with self._lock:
            if not self._closed:
                self._ask(msgspec.msgpack.encode(Trial(Regex("a"), "")))

    def close(self) -> None:
        """End the process; a trial under way ends first."""
        with self._lock:
            self._closed = True
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
                send(self._process.stdin, pickle.dumps((shape, self._documents, self._seconds, self._memory)))
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has forked
        with process, contextlib.suppress(BrokenPipeError):  # closes the pipes and waits
            pass


def beyond_limits(seconds: float, memory: int, ended_by: int = 0) -> LimitExceeded:
    """What is said of a constraint whose trial went beyond `seconds` of computing, `memory` bytes, or its stack.

    `ended_by` is the signal that ended it: of computing too long the kernel tells, of the other two libraries abort.
    """
    time, room = f"{seconds:g} s of computing", f"{memory >> 20} MiB"
    if ended_by == signal.SIGPROF:
        return LimitExceeded(f"The constraint takes more than {time} to compile; make it smaller.")
    if ended_by:
        return LimitExceeded(f"The constraint takes more than {room} to compile, or nests too deep; make it smaller.")
    return LimitExceeded(f"The constraint takes more than {time} or {room} to compile, or nests too deep; make it smaller.")


def send(pipe: IO[bytes], message: bytes) -> None:
    """Write a message that `receive` reads at the other end."""
    pipe.write(len(message).to_bytes(8, "little") + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message, None where the other end was closed first."""
    length = int.from_bytes(pipe.read(8), "little")
    message = pipe.read(length)
    return message if length and len(message) == length else None
