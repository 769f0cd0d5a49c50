"""A compiler that is full is the server's trouble: the call may be tried again, and is not called wrong."""

import threading
from concurrent.futures import Future
from typing import Unpack

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.grammar import CompiledGrammar
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import Constraint, Demands, Regex
from branchpoint.constrained.vocabulary import make_vocabulary
from branchpoint.runtime.compiling import Compiling
from branchpoint.runtime.errors import Overloaded
from branchpoint.runtime.messages import Call
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.stats import GrammarCounts


class Owners:
    """A compiler that only notes for whom it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def compile(
        self,
        constraint: Constraint | None,
        prefix: bytes,
        owner: str = "",
        **demands: Unpack[Demands],
    ) -> "Future[CompiledGrammar]":
        self.asked.append(owner)
        return Future()


def test_grammars_are_asked_for_by_caller_whatever_salt_it_sends() -> None:
    owners = Owners()
    compiling = Compiling(owners)
    for number, namespace in enumerate((Caller("a", "team").space("salt"), Caller("a", "team").space("other"), "salt", "")):
        compiling.start(Call(f"c{number}", (1,), constraint=Regex("a"), namespace=namespace))
    assert owners.asked == ["team", "team", "", ""]


def test_a_full_compiler_is_an_overload() -> None:
    vocabulary = make_vocabulary({byte: bytes([byte]) for byte in range(256)}, (), (256,), 257, list)
    compiler = GrammarCompiler(vocabulary, 1, CompilerLimits(waiting=1))
    gate = threading.Event()
    compiler._pool.submit("gate", gate.wait)
    compiling = Compiling(compiler)
    compiling.start(Call("first", (1,), constraint=Regex("a")))
    compiling.start(Call("second", (1,), constraint=Regex("b")))
    compiling.start(Call("third", (1,), constraint=Regex("a")))  # the same as the first: it joins it
    ((call_id, future),) = compiling.take_done()
    assert call_id == "second"
    with pytest.raises(Overloaded, match="try again"):
        future.result()
    gate.set()
    while compiling.call_ids:
        compiling.wait()
        for _, other in compiling.take_done():
            assert other.result() is not None
    compiling.start(Call("again", (1,), constraint=Regex("a")))
    compiling.take_done()
    assert compiling.counts == GrammarCounts(hits=1, compiled=2, refused=1)
    compiler.close()
