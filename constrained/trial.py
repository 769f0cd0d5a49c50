"""The process behind `sandbox.py`: compiles what it is sent, each in a fork with limits, and answers with what came of it.

A fork that goes beyond a limit dies, which is an answer too. Ends when its input does.
"""

import functools
import gc
import os
import pickle
import resource
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import GrammarError
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.refusals import only_grammar_errors
from branchpoint.constrained.sandbox import Outcome, Trial, beyond_limits, receive, send
from branchpoint.constrained.vocabulary import make_vocabulary

__all__ = ["main"]

_STACK = 3 << 20  # less than any thread of the real compiler has: what nests this deep passes there too


def main() -> None:
    """Serve trials from standard input."""
    inbox = sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    first = receive(inbox)
    if first is None:
        return
    (tokens, special, eos, size), documents, seconds, memory = pickle.loads(first)
    texts = dict(enumerate(tokens))
    vocabulary = make_vocabulary(texts, special, eos, size, _cutter({text: token for token, text in texts.items() if text}))
    threading.stack_size(_STACK)
    compiler = GrammarCompiler(vocabulary, 1, CompilerLimits(trial_seconds=0, cached=1), documents)
    compiler.warm().result()  # before the first fork, which all share it with
    gc.freeze()  # what is shared is looked through by none of them
    while (message := receive(inbox)) is not None:
        answer, ended_by = _in_fork(functools.partial(_answer, compiler, message, seconds, memory))
        send(answers, answer or pickle.dumps(beyond_limits(seconds, memory, ended_by)))


def _in_fork(work: Callable[[], bytes]) -> tuple[bytes, int]:
    """What `work` gives in a fork of this process; nothing where that doesn't live to tell it, and the signal that ended it."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(work())
            status = 0
        finally:
            os._exit(status)  # leaves alone what belongs to the other
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitpid(process, 0)[1]
    return (b"", os.WTERMSIG(status)) if status else (answer, 0)


def _answer(compiler: GrammarCompiler, message: bytes, seconds: float, memory: int) -> bytes:
    _limit_memory(memory)
    trial = msgspec.msgpack.decode(message, type=Trial)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time; its signal ends the process
    with ThreadPoolExecutor(1) as thread:  # for its stack, and because no thread survives a fork
        outcome = thread.submit(_outcome, compiler, trial, beyond_limits(seconds, memory, signal.SIGKILL)).result()
    signal.setitimer(signal.ITIMER_PROF, 0)
    return pickle.dumps(outcome)


def _outcome(compiler: GrammarCompiler, trial: Trial, too_large: GrammarError) -> Outcome:
    try:
        return only_grammar_errors(lambda: compiler.try_out(trial.constraint, trial.prefix))
    except GrammarError as error:
        return too_large if isinstance(error.__cause__, MemoryError) else error


def _limit_memory(more: int) -> None:
    """Allow `more` bytes of address space beyond what is taken now, and no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123  # no file, a number
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _cutter(ids: dict[bytes, int]) -> Callable[[bytes], list[int]]:
    """Cuts bytes into tokens, the longest first. What is forced isn't at trial here: any right cut will do."""
    longest = max(map(len, ids), default=1)

    def cut(text: bytes) -> list[int]:
        tokens, at = [], 0
        while at < len(text):
            end = next((end for end in range(min(len(text), at + longest), at, -1) if text[at:end] in ids), None)
            if end is None:
                raise ValueError(f"No token begins at byte {at}.")
            tokens.append(ids[text[at:end]])
            at = end
        return tokens

    return cut


if __name__ == "__main__":
    main()
