"""Calls whose grammars are being compiled elsewhere. Asked by the engine at each step; such a call has no pages yet.

The compiler itself (`constrained.compiler`) works in threads or processes of its own.
"""

from collections.abc import KeysView
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol, Unpack

import msgspec

from branchpoint.constrained.errors import CompilerBusy
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.spec import Constraint, Demands
from branchpoint.errors import BranchpointError
from branchpoint.runtime.errors import Overloaded
from branchpoint.runtime.messages import Call
from branchpoint.runtime.stats import GrammarCounts

__all__ = ["Compiler", "Compiling"]

WAIT_SECONDS = 0.01


class Compiler(Protocol):
    """Compiles constraints elsewhere; `constrained.compiler` has the real one."""

    def compile(
        self,
        constraint: Constraint | None,
        prefix: bytes,
        owner: str = "",
        **demands: Unpack[Demands],
    ) -> "Future[CompiledGrammar]":
        """The grammar of `constraint` whose sentences come behind `prefix`, or where it is None of anything behind `prefix`.

        Owners get their turns: what one of them has asked for in great number doesn't hold up another's. `demands`: a
        SteerableGrammar; a refusal where no output of `most` tokens is complete; sentences that go on what is written.
        """


class Compiling:
    """The grammars under way, by call; `counts` are those that are no longer."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._futures: dict[str, Future[CompiledGrammar]] = {}
        self._waited = set[str]()
        self.counts = GrammarCounts()

    @property
    def call_ids(self) -> KeysView[str]:
        """The calls that wait for a grammar."""
        return self._futures.keys()

    def start(self, call: Call) -> None:
        """Have the grammar of `call` compiled; where the compiler refuses it at once, that is its result."""
        try:
            steerable, most = call.sampling.close == "steer", call.sampling.max_tokens
            demands = Demands(steerable=steerable, most=most, written=call.written)
            future = self._compiler.compile(call.constraint, call.heal, call.owner, **demands)
        except BranchpointError as error:
            future = Future()
            future.set_exception(error)
        if future.done() and isinstance(busy := future.exception(), CompilerBusy):  # the server's trouble, not the call's
            future = Future()
            future.set_exception(Overloaded(str(busy)))
        self._futures[call.id] = future
        if not future.done():
            self._waited.add(call.id)

    def take_done(self) -> list[tuple[str, "Future[CompiledGrammar]"]]:
        """The calls whose grammar is there, or has failed; they are no longer waited for."""
        done = [(call_id, future) for call_id, future in self._futures.items() if future.done()]
        for call_id, future in done:
            del self._futures[call_id]
            self._count(future, waited=call_id in self._waited)
            self._waited.discard(call_id)
        return done

    def wait(self) -> None:
        """Give the compiler a moment, where there is nothing else to do."""
        if self._futures:
            wait(self._futures.values(), WAIT_SECONDS, FIRST_COMPLETED)

    def drop(self, call_id: str) -> None:
        """The call has ended: its grammar isn't wanted any more. It may be another call's too, so it isn't cancelled."""
        self._futures.pop(call_id, None)
        self._waited.discard(call_id)

    def _count(self, future: "Future[CompiledGrammar]", *, waited: bool) -> None:
        refused = future.cancelled() or future.exception() is not None
        name = "refused" if refused else "compiled" if waited else "hits"
        self.counts = msgspec.structs.replace(self.counts, **{name: getattr(self.counts, name) + 1})
