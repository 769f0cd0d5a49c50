"""Owners get their turns: however many of one wait, another's next piece is soon done."""

import threading

import pytest

from branchpoint.constrained.compiler import GrammarCompiler
from branchpoint.constrained.errors import CompilerBusy
from branchpoint.constrained.limits import CompilerLimits
from branchpoint.constrained.spec import Regex
from branchpoint.constrained.turns import Turns
from branchpoint.runtime.tokenizer import load_tokenizer


def test_owners_are_served_in_rotation_each_in_its_own_order() -> None:
    turns, gate, done = Turns(8, 1, "test"), threading.Event(), list[str]()
    turns.submit("", gate.wait)
    names = [*(f"flood{at}" for at in range(5)), "other0", "other1", "third0"]
    pieces = [turns.submit(name[:-1], lambda name=name: done.append(name)) for name in names]
    gate.set()
    for piece in pieces:
        piece.result(30)
    assert done == ["flood0", "other0", "third0", "flood1", "other1", "flood2", "flood3", "flood4"]
    turns.close()


def test_each_owners_line_has_an_end_of_its_own_and_closing_cancels_what_waits() -> None:
    turns, gate = Turns(2, 1, "test"), threading.Event()
    began = threading.Event()
    running = turns.submit("", lambda: began.set() or gate.wait(30))
    assert began.wait(30)
    waiting = [turns.submit(owner, lambda: 1) for owner in ("flood", "flood", "other")]
    with pytest.raises(CompilerBusy, match="2 of your constraints wait"):
        turns.submit("flood", lambda: 1)
    closing = threading.Thread(target=turns.close)
    closing.start()
    while not all(one.cancelled() for one in waiting):
        assert closing.is_alive()
    gate.set()
    closing.join(30)
    assert running.result(30)


def test_what_two_owners_wait_for_is_done_once_when_the_first_turn_of_either_comes() -> None:
    turns, gate, done = Turns(8, 1, "test"), threading.Event(), list[str]()
    turns.submit("", gate.wait)
    flood = [turns.submit("flood", lambda at=at: done.append(f"flood{at}")) for at in range(5)]
    turns.join("other", flood[-1])  # a popular schema, which another has put at the end of a long line
    turns.join("flood", flood[-1])
    gate.set()
    for piece in flood:
        piece.result(30)
    assert done == ["flood0", "flood4", "flood1", "flood2", "flood3"]
    turns.join("late", flood[-1])
    turns.close()


def test_a_failure_is_its_own_pieces_alone() -> None:
    turns = Turns(2, 1, "test")
    failed, fine = turns.submit("a", lambda: 1 // 0), turns.submit("a", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        failed.result(30)
    assert fine.result(30) == 2
    turns.close()


def test_a_key_that_floods_the_compiler_neither_starves_nor_fills_it_for_another() -> None:
    compiler = GrammarCompiler(load_tokenizer(None, 300, ()).vocabulary, 1, CompilerLimits(waiting=20))
    gate, order = threading.Event(), list[str]()
    compiler._pool.submit("gate", gate.wait)
    asked = [("flood", length) for length in range(1, 31)] + [("other", length) for length in (40, 41)]
    futures = []
    for owner, length in asked:
        futures.append(compiler.compile(Regex("a" * length), owner=owner))
        futures[-1].add_done_callback(lambda _, owner=owner: order.append(owner))
    refused = [isinstance(future.exception(0), CompilerBusy) for future in futures if future.done()]
    assert refused == [True] * 10 and order == ["flood"] * 10, "beyond its line a key is refused, and nobody else"
    order.clear()
    gate.set()
    assert futures[-1].result(60) is not None and order[:4] == ["flood", "other", "flood", "other"]
    compiler.close()
