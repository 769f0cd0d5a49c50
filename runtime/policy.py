"""In which order waiting sequences are admitted. Asked by the scheduler whenever there is room in the batch.

Priority comes before everything. Within one, the oldest call goes first once later ones have overtaken it `MAX_OVERTAKEN` times,
so that nobody starves: with n older calls still waiting, a call is overtaken at most `MAX_OVERTAKEN` + n x `DUE_EVERY` times.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Protocol

from branchpoint.runtime.config import Policy
from branchpoint.runtime.sequence import Sequence

__all__ = ["MAX_OVERTAKEN", "AdmissionOrder", "FirstCome", "LongestPrefix", "ProgramFirst", "make_order"]

MAX_OVERTAKEN = 256
DUE_EVERY = 16
MAX_MATCHED = 256
MAX_REMEMBERED = 65_536


class AdmissionOrder(Protocol):
    """Sorts waiting sequences, and is told which were admitted."""

    def sort(self, waiting: Collection[Sequence]) -> list[Sequence]:
        """The waiting sequences, in the order in which they should be admitted."""

    def admitted(self, sequence: Sequence) -> None:
        """`sequence` has entered the batch."""


class FirstCome:
    """In order of arrival."""

    def sort(self, waiting: Collection[Sequence]) -> list[Sequence]:
        """By priority, then arrival."""
        return sorted(waiting, key=lambda sequence: sequence.rank)

    def admitted(self, sequence: Sequence) -> None:
        """Changes nothing: arrival doesn't depend on others."""


class _Aging:
    """Counts how often waiting calls were overtaken by later ones, and lets the oldest that was too often go first.

    One in `DUE_EVERY` admissions at most: under load all that wait are due, and would otherwise go in order of arrival.
    """

    def __init__(self) -> None:
        self._arrivals: list[int] = []  # of admitted sequences that came after the oldest waiting one
        self._due: Sequence | None = None
        self._since = DUE_EVERY

    def admitted(self, sequence: Sequence) -> None:
        insort(self._arrivals, sequence.arrival)
        self._since = 0 if sequence is self._due else self._since + 1

    def due(self, waiting: Collection[Sequence]) -> Sequence | None:
        """Which of `waiting` goes first among those of its priority, None where nobody was overtaken too often."""
        self._due = None
        if not waiting:
            return None
        del self._arrivals[: bisect_right(self._arrivals, min(sequence.arrival for sequence in waiting))]
        if self._since >= DUE_EVERY and len(self._arrivals) >= MAX_OVERTAKEN:
            oldest = min(waiting, key=lambda sequence: sequence.rank)
            if len(self._arrivals) - bisect_right(self._arrivals, oldest.arrival) >= MAX_OVERTAKEN:
                self._due = oldest
        return self._due


class LongestPrefix:
    """Those first of which the tree holds the most tokens; only the oldest `MAX_MATCHED` are looked up at a time."""

    def __init__(self, cached_tokens: Callable[[Sequence], int]) -> None:
        self._cached_tokens = cached_tokens
        self._aging = _Aging()

    def sort(self, waiting: Collection[Sequence]) -> list[Sequence]:
        """By priority, then one that is due, then the length of the cached prefix."""
        ranked = sorted(waiting, key=lambda sequence: sequence.rank)
        due = self._aging.due(ranked)
        head = ranked[:MAX_MATCHED]
        head.sort(key=lambda sequence: self._key(sequence, first=sequence is due))
        return head + ranked[MAX_MATCHED:]

    def admitted(self, sequence: Sequence) -> None:
        """Others may have been overtaken by it."""
        self._aging.admitted(sequence)

    def _key(self, sequence: Sequence, *, first: bool) -> tuple[int, bool, int, int, int]:
        matched = 0 if first else self._cached_tokens(sequence)
        return (-sequence.hints.priority, not first, -matched, sequence.arrival, sequence.index)


class _Begun:
    """Numbers programs, or forks, in the order in which they began; those that were silent for longest are forgotten."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()
        self._next = 0

    def note(self, name: Hashable) -> None:
        if name not in self._numbers:
            self._numbers[name] = self._next
            self._next += 1
        self._numbers.move_to_end(name)
        if len(self._numbers) > MAX_REMEMBERED:
            self._numbers.popitem(last=False)

    def age(self, name: Hashable, arrival: int) -> tuple[int, int]:
        """Sorts what has begun before the rest, which goes by `arrival`."""
        number = self._numbers.get(name)
        return (1, number) if number is not None else (2, arrival)


class ProgramFirst:
    """Programs that have begun before new ones, the oldest program first, siblings of a fork one after another."""

    def __init__(self) -> None:
        self._aging = _Aging()
        self._programs = _Begun()
        self._forks = _Begun()

    def sort(self, waiting: Collection[Sequence]) -> list[Sequence]:
        """By priority, then one that is due, then begun programs, then age of the program, then of the fork, then of the call."""
        due = self._aging.due(waiting)
        ages: dict[Hashable, tuple[int, int]] = {}  # waiting sequences come in no order: the oldest of a program decides
        names = []
        for sequence in sorted(waiting, key=lambda sequence: sequence.arrival):
            program = _program(sequence)
            fork = (program, sequence.hints.path[:-1])
            if program not in ages:
                ages[program] = self._programs.age(program, sequence.arrival)
            if fork not in ages:
                ages[fork] = self._forks.age(fork, sequence.arrival)
            names.append((sequence, program, fork))

        def key(named: tuple[Sequence, str, Hashable]) -> tuple[int, ...]:
            sequence, program, fork = named
            if sequence is due:
                return (-sequence.hints.priority, 0, sequence.arrival, sequence.index)
            return (-sequence.hints.priority, *ages[program], *ages[fork], sequence.arrival, sequence.index)

        return [sequence for sequence, _, _ in sorted(names, key=key)]

    def admitted(self, sequence: Sequence) -> None:
        """Its program and its fork have begun."""
        self._aging.admitted(sequence)
        program = _program(sequence)
        self._programs.note(program)
        self._forks.note((program, sequence.hints.path[:-1]))


def _program(sequence: Sequence) -> str:
    """A call without a program is one of its own."""
    return sequence.hints.program or f"call {sequence.call_id}"


def make_order(policy: Policy, cached_tokens: Callable[[Sequence], int]) -> AdmissionOrder:
    """The order of this name; `cached_tokens` tells how much of a waiting sequence the tree holds."""
    if policy == "fcfs":
        return FirstCome()
    return LongestPrefix(cached_tokens) if policy == "lpm" else ProgramFirst()
