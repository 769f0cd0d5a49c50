"""From a constraint to a compiled grammar, on worker threads, once for all who ask for the same.

The scheduler calls `compile` when a sequence arrives and admits it when the future is done; nothing here runs in its loop.
"""

import functools
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from branchpoint.constrained import charset
from branchpoint.constrained.completion import Completer, check_length
from branchpoint.constrained.documents import Documents
from branchpoint.constrained.engines.continued import continue_grammar
from branchpoint.constrained.engines.known import PrefixedGrammar
from branchpoint.constrained.engines.steered import SteerableGrammar
from branchpoint.constrained.errors import (
    CompilerClosed,
    GrammarError,
    LimitExceeded,
)
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.healing import compile_prefix
from branchpoint.constrained.kept import Kept
from branchpoint.constrained.lazy import Lazy
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.maker import GrammarMaker
from branchpoint.constrained.places import starting_point
from branchpoint.constrained.prepared import Prepared
from branchpoint.constrained.refusals import only_grammar_errors
from branchpoint.constrained.sandbox import RiskyConstraint, Sandbox, is_risky
from branchpoint.constrained.spec import Choice, Constraint, Ebnf, JsonSchema, Regex, StructuralTag, Written
from branchpoint.constrained.turns import Turns
from branchpoint.constrained.vocabulary import Vocabulary

__all__ = ["CompilerStats", "GrammarCompiler"]

_Key = tuple[Constraint | None, bytes, bool, int]
"""What is asked for, the healed text before it, whether it is to be steered, and how few tokens it must have (0: any number)."""

_LONGEST = 1 << 20
_LOOKED_THROUGH = 4  # tokens up to which all outputs are gone through to see that none is complete
_OURS = "\x1f"
"""Whose the compiler\'s own preparations are: no caller is called so."""


@dataclass(frozen=True, slots=True)
class CompilerStats:
    """Counts since the compiler began: answered from the cache, joined to one in flight, compiled, refused."""

    hits: int
    shared: int
    compiled: int
    refused: int


class GrammarCompiler:
    """Compiles constraints for one vocabulary. Thread-safe. `close()` ends its threads.

    `documents` are JSON schemas by URI that others may refer to; nothing else is ever looked up.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        workers: int = 2,
        limits: CompilerLimits | None = None,
        documents: Mapping[str, object] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._limits = limits or CompilerLimits()
        self._pool = Turns(self._limits.waiting, workers, "grammar")
        self._trials = Turns(self._limits.trials, 1, "grammar-trial")
        self._lock = threading.Lock()
        self._kept = Kept[CompiledGrammar](self._limits.cached, self._limits.cached_characters)
        self._closed = False
        self._counts = dict.fromkeys(("hits", "shared", "compiled", "refused"), 0)
        self._maker = GrammarMaker(vocabulary, self._limits, Documents(documents))
        self._completer = Lazy(lambda: Completer(vocabulary))
        seconds, memory = self._limits.trial_seconds, self._limits.trial_bytes
        self._sandbox = Sandbox(vocabulary, documents, seconds, memory) if seconds else None
        self._pool.submit(_OURS, self._maker.engine)  # its token tree takes a tenth of a second that no caller waits

    @property
    def stats(self) -> CompilerStats:
        """A snapshot of the counts."""
        with self._lock:
            return CompilerStats(**self._counts)

    def warm(self) -> "Future[None]":
        """Have all ready that the first constraints would wait for, the process for trials too; done when it is."""
        return self._pool.submit(_OURS, self._warm)

    def _warm(self) -> None:
        engine = self._maker.engine()
        engine.shapes()
        engine.effects()
        charset.warm()
        if self._sandbox is not None:
            self._sandbox.begin()

    def compile(
        self,
        constraint: Constraint | None,
        prefix: bytes = b"",
        owner: str = "",
        *,
        steerable: bool = False,
        most: int | None = None,
        written: Written | None = None,
    ) -> "Future[CompiledGrammar]":
        """A future of the grammar whose outputs begin with `prefix` and then follow `constraint` (None: anything).

        If `steerable`, it is a SteerableGrammar; else it is refused where certainly no output of `most` tokens is complete.
        Errors arrive in the future, all of them GrammarErrors. Cancelling it disturbs nobody else who asked for the same.
        Owners have their turns: `owner`'s constraints wait for its own earlier ones, and for one of each other owner at a time;
        none waits for the risky ones, which are tried out in turns of their own. Where some of the sentence is `written`, outputs
        are what it lacks, `prefix` repeating its end; NotInGrammar where no sentence begins like that.
        """
        if written is not None:
            return self._continued(constraint, prefix, owner, written, steerable)
        mine: Future[CompiledGrammar] = Future()
        try:
            _check_size(constraint)
            few = most if most is not None and most <= _LOOKED_THROUGH and not prefix and not steerable else 0
            shared = self._shared((constraint, prefix, steerable, few), owner)
        except GrammarError as error:
            mine.set_exception(error)
            return mine
        shared.add_done_callback(functools.partial(_hand_on, mine))
        return mine

    def _continued(
        self, constraint: Constraint | None, prefix: bytes, owner: str, written: Written, steerable: bool
    ) -> "Future[CompiledGrammar]":
        mine: Future[CompiledGrammar] = Future()
        text = written.text.encode(errors="replace")
        before = prefix[: max(0, len(prefix) - len(text))]  # what is healed of what stands before the sentence
        healed = prefix if text else b""
        behind = text[: max(0, len(text) - len(prefix))]

        def go_on(whole: "Future[CompiledGrammar]") -> None:
            if whole.cancelled() or whole.exception() is not None:
                _hand_on(mine, whole)
                return
            work = functools.partial(continue_grammar, whole.result(), self._vocabulary, behind, healed, whole=written.whole)
            try:
                mine_too = self._pool.submit(owner, functools.partial(only_grammar_errors, work))
            except GrammarError as error:
                mine.set_exception(error)
                return
            mine_too.add_done_callback(functools.partial(_hand_on, mine))

        self.compile(constraint, before, owner, steerable=steerable).add_done_callback(go_on)
        return mine

    def _shared(self, key: _Key, owner: str) -> "Future[CompiledGrammar]":
        with self._lock:
            if self._closed:
                raise CompilerClosed("The grammar compiler is closed; nothing more can be compiled.")
            kept = self._kept.find(key)
            if kept is not None:
                self._counts["hits" if kept.done() else "shared"] += 1
                if not kept.done():
                    self._line(key).join(owner, kept)
                return kept
            future = self._line(key).submit(owner, functools.partial(self._build, key))
            self._kept.keep(key, future, _length(key[0]))
        future.add_done_callback(functools.partial(self._settle, key))
        return future

    def _line(self, key: _Key) -> Turns:
        constraint = key[0]
        return self._trials if self._sandbox is not None and constraint is not None and is_risky(constraint) else self._pool

    def _settle(self, key: _Key, future: "Future[CompiledGrammar]") -> None:
        failed = future.cancelled() or future.exception() is not None
        with self._lock:
            self._counts["refused" if failed else "compiled"] += 1
            if failed:
                self._kept.expire(key, future, self._limits.failure_seconds)

    def close(self) -> None:
        """Refuse what still waits, let what runs finish, and end the threads."""
        with self._lock:
            self._closed = True
        self._pool.close()
        self._trials.close()
        if self._sandbox is not None:
            self._sandbox.close()

    def try_out(self, constraint: RiskyConstraint, prefix: str) -> Prepared | None:
        """Compile in this thread, for `trial.py`: what another process may go on from, None where that is nothing."""
        return self._maker.make(constraint, prefix)[1]

    def _build(self, key: _Key) -> CompiledGrammar:
        return only_grammar_errors(functools.partial(self._compile, *key))

    def _compile(self, constraint: Constraint | None, prefix: bytes, steerable: bool, few: int) -> CompiledGrammar:
        grammar, prepared = self._plain(constraint, prefix)
        if few:
            check_length(grammar.matcher(), few, self._vocabulary.size)
        if not steerable:
            return grammar
        return SteerableGrammar(self._completer(), grammar, starting_point(constraint, prefix, prepared, self._vocabulary))

    def _plain(self, constraint: Constraint | None, prefix: bytes) -> tuple[CompiledGrammar, Prepared | None]:
        if len(prefix) > self._limits.prefix_bytes:
            raise LimitExceeded(f"A healed prefix may have {self._limits.prefix_bytes:,} bytes, got {len(prefix):,}.")
        if constraint is None:
            return compile_prefix(self._vocabulary, prefix), None
        if isinstance(constraint, Choice):
            return self._maker.choice(constraint, prefix), None
        text = _decoded(prefix)
        prepared = None
        if self._sandbox is not None and is_risky(constraint):
            prepared = self._sandbox.check(constraint, text or "")
        grammar, prepared = self._maker.make(constraint, text or "", prepared)
        return PrefixedGrammar(self._vocabulary, prefix, grammar) if text is None else grammar, prepared


def _check_size(constraint: Constraint | None) -> None:
    """Refuse what is far too long at the door: even to look it up takes the caller's thread some time."""
    if not isinstance(constraint, Choice) and _length(constraint) > _LONGEST:  # choices have limits of their own
        raise LimitExceeded(f"A constraint may have {_LONGEST:,} characters, got {_length(constraint):,}.")


def _length(constraint: Constraint | None) -> int:
    """How many characters a constraint has."""
    match constraint:
        case JsonSchema(text) | Regex(text) | Ebnf(text) | StructuralTag(text):
            return len(text)
        case Choice(options):
            return sum(map(len, options))
    return 0


def _decoded(prefix: bytes) -> str | None:
    try:
        return prefix.decode()
    except UnicodeDecodeError:
        return None


def _hand_on(mine: "Future[CompiledGrammar]", shared: "Future[CompiledGrammar]") -> None:
    """Give a shared result to one of those who asked, unless they gave up."""
    if not mine.set_running_or_notify_cancel():
        return
    if shared.cancelled():
        mine.set_exception(CompilerClosed("The grammar compiler was closed before it came to this constraint."))
    elif (error := shared.exception()) is not None:
        mine.set_exception(error)
    else:
        mine.set_result(shared.result())
