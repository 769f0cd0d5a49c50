"""In which order waiting sequences are admitted. Asked by the scheduler whenever there is room in the batch.

Priority comes before everything. Within one, the oldest call goes first once later ones have overtaken it `MAX_OVERTAKEN` times,
so that nobody starves: with n older calls still waiting, a call is overtaken at most `MAX_OVERTAKEN` + n x `DUE_EVERY` times. Who
is held back for what others will need (`room.py`) lets at most `HELD_PLANS` plans pass between two admissions.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain, groupby
from typing import Protocol

from branchpoint.radix import Standing
from branchpoint.runtime.config import Policy
from branchpoint.runtime.queue import SequenceQueue
from branchpoint.runtime.sequence import Sequence

__all__ = ["MAX_OVERTAKEN", "AdmissionOrder", "FirstCome", "LongestPrefix", "ProgramFirst", "make_order"]

MAX_OVERTAKEN = 256
DUE_EVERY = 16
MAX_MATCHED = 256
MAX_REMEMBERED = 65_536
BEGUN, NEW = 1, 2
FIRST = -1  # the turn of one that was overtaken too often

CachedTokens = Callable[[Sequence], int]
"""How much of a waiting sequence the tree holds."""


class AdmissionOrder(Protocol):
    """Holds what waits, and says in which order it should be admitted."""

    def add(self, sequence: Sequence) -> None:
        """`sequence` waits from now on."""

    def discard(self, sequence: Sequence) -> None:
        """`sequence` waits no longer, or never did."""

    def candidates(self) -> Iterator[Sequence]:
        """What waits now, the next to be admitted first. What comes or goes meanwhile doesn't disturb it."""

    def yields_to(self, sequence: Sequence) -> Standing | None:
        """What is awaited in the cache with more than this standing isn't to be taken for `sequence`; None: all may be."""

    def admitted(self, sequence: Sequence) -> int:
        """`sequence`, no longer waiting, has entered the batch. Returns its turn: the lower, the later it is preempted."""

    def ended(self, program: Hashable) -> None:
        """No call of `program` (see `Sequence.program`) will come any more."""


class FirstCome:
    """In order of arrival, within a priority."""

    def __init__(self) -> None:
        self._queue = SequenceQueue()

    def add(self, sequence: Sequence) -> None:
        """See `AdmissionOrder`."""
        self._queue.put(sequence, sequence.rank)

    def discard(self, sequence: Sequence) -> None:
        """See `AdmissionOrder`."""
        self._queue.discard(sequence)

    def candidates(self) -> Iterator[Sequence]:
        """By priority, then arrival."""
        return iter(self._queue)

    def yields_to(self, sequence: Sequence) -> Standing | None:
        """To nothing."""
        return None

    def admitted(self, sequence: Sequence) -> int:
        """By arrival, which doesn't depend on others."""
        return sequence.arrival

    def ended(self, program: Hashable) -> None:
        """Changes nothing."""


class _Aging:
    """Counts how often waiting calls were overtaken by later ones, and lets the oldest that was too often go first.

    One in `DUE_EVERY` admissions at most: under load all that wait are due, and would otherwise go in order of arrival.
    `by_rank` is all that wait.
    """

    def __init__(self) -> None:
        self._by_arrival = SequenceQueue()
        self.by_rank = SequenceQueue()
        self._arrivals: list[int] = []  # of admitted sequences that came after the oldest waiting one
        self._due: Sequence | None = None
        self._since = DUE_EVERY

    def add(self, sequence: Sequence) -> None:
        self._by_arrival.put(sequence, (sequence.arrival, sequence.index))
        self.by_rank.put(sequence, sequence.rank)

    def discard(self, sequence: Sequence) -> None:
        self._by_arrival.discard(sequence)
        self.by_rank.discard(sequence)

    def admitted(self, sequence: Sequence) -> None:
        insort(self._arrivals, sequence.arrival)
        self._since = 0 if sequence is self._due else self._since + 1

    @property
    def due_one(self) -> Sequence | None:
        """What `due` found last."""
        return self._due

    def due(self) -> Sequence | None:
        """Which goes first among those of its priority, None where nobody was overtaken too often."""
        self._due = None
        first, oldest = self._by_arrival.first, self.by_rank.first
        if first is None or oldest is None:
            self._arrivals.clear()
            return None
        del self._arrivals[: bisect_right(self._arrivals, first.arrival)]
        overtaken = len(self._arrivals) - bisect_right(self._arrivals, oldest.arrival)
        if self._since >= DUE_EVERY and overtaken >= MAX_OVERTAKEN:
            self._due = oldest
        return self._due


class LongestPrefix:
    """Those first of which the tree holds the most tokens; only the oldest `MAX_MATCHED` are looked up at a time."""

    def __init__(self, cached_tokens: CachedTokens) -> None:
        self._cached_tokens = cached_tokens
        self._aging = _Aging()

    def add(self, sequence: Sequence) -> None:
        """See `AdmissionOrder`."""
        self._aging.add(sequence)

    def discard(self, sequence: Sequence) -> None:
        """See `AdmissionOrder`."""
        self._aging.discard(sequence)

    def candidates(self) -> Iterator[Sequence]:
        """By priority, then one that is due, then the length of the cached prefix."""
        waiting = list(self._aging.by_rank)
        due = self._aging.due()
        head = waiting[:MAX_MATCHED]
        head.sort(key=lambda sequence: self._key(sequence, first=sequence is due))
        return iter(head + waiting[MAX_MATCHED:])

    def yields_to(self, sequence: Sequence) -> Standing | None:
        """To nothing."""
        return None

    def admitted(self, sequence: Sequence) -> int:
        """By arrival. Others may have been overtaken by it."""
        self._aging.admitted(sequence)
        return sequence.arrival

    def ended(self, program: Hashable) -> None:
        """Changes nothing."""

    def _key(self, sequence: Sequence, *, first: bool) -> tuple[int, bool, int, int, int]:
        matched = 0 if first else self._cached_tokens(sequence)
        return (-sequence.hints.priority, not first, -matched, sequence.arrival, sequence.index)


class _Begun:
    """Numbers programs, or forks, in the order in which they began; those that were silent for longest are forgotten."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()
        self._next = 0

    @property
    def next(self) -> int:
        """The number that what begins next will have."""
        return self._next

    def number(self, name: Hashable) -> int | None:
        """That of `name`; None where it hasn't begun."""
        return self._numbers.get(name)

    def note(self, name: Hashable) -> bool:
        """`name` has begun, or goes on; whether this is news."""
        is_new = name not in self._numbers
        if is_new:
            self._numbers[name] = self._next
            self._next += 1
        self._numbers.move_to_end(name)
        if len(self._numbers) > MAX_REMEMBERED:
            self._numbers.popitem(last=False)
        return is_new

    def forget(self, name: Hashable) -> None:
        self._numbers.pop(name, None)

    def age(self, name: Hashable, arrival: int) -> tuple[int, int]:
        """Sorts what has begun before the rest, which goes by `arrival`."""
        number = self.number(name)
        return (BEGUN, number) if number is not None else (NEW, arrival)


class ProgramFirst:
    """Programs that have begun before new ones, the oldest program first; of one program the deepest branches, so that what they
    hold is done for before others begin, and siblings of a fork one after another.

    Of the `MAX_MATCHED` oldest new calls, those first whose programs find the most in the tree.
    """

    def __init__(self, cached_tokens: CachedTokens) -> None:
        self._cached_tokens = cached_tokens
        self._queue = SequenceQueue()
        self._aging = _Aging()
        self._programs = _Begun()
        self._forks = _Begun()
        self._waiting: dict[Hashable, dict[Sequence, None]] = {}

    def add(self, sequence: Sequence) -> None:
        """See `AdmissionOrder`."""
        self._aging.add(sequence)
        together = self._waiting.setdefault(sequence.program, {})
        together[sequence] = None
        self._queue.put(sequence, self._key(sequence, next(iter(together)).arrival))

    def discard(self, sequence: Sequence) -> None:
        """See `AdmissionOrder`."""
        self._aging.discard(sequence)
        self._queue.discard(sequence)
        program = sequence.program
        together = self._waiting.get(program, {})
        together.pop(sequence, None)
        if not together:
            self._waiting.pop(program, None)

    def candidates(self) -> Iterator[Sequence]:
        """By priority, then one that is due, then begun programs by age, the deepest fork, the oldest fork, the oldest call."""
        due = self._aging.due()
        for priority, entries in groupby(self._queue.entries(), key=lambda entry: entry[0][0]):
            if due is not None and -due.hints.priority == priority:
                yield due
            stretch = list(entries)
            begun = sum(key[1] == BEGUN for key, _ in stretch)
            in_order = chain((sequence for _, sequence in stretch[:begun]), self._by_prefix(stretch[begun:]))
            yield from (sequence for sequence in in_order if sequence is not due)

    def yields_to(self, sequence: Sequence) -> Standing | None:
        """To programs that began earlier; one that is due to nothing."""
        if sequence is self._aging.due_one:
            return None
        number = self._programs.number(sequence.program)
        return (sequence.hints.priority, -(self._programs.next if number is None else number))

    def admitted(self, sequence: Sequence) -> int:
        """By the age of its program, which has begun now, as has its fork; one that was due goes before all others."""
        program, was_due = sequence.program, sequence is self._aging.due_one
        self._aging.admitted(sequence)
        news = self._programs.note(program)
        if self._forks.note((program, sequence.hints.path[:-1])) or news:
            for waiting in self._waiting.get(program, {}):
                self._queue.put(waiting, self._key(waiting, waiting.arrival))
        number = self._programs.number(program)
        assert number is not None, "what was noted just now has a number"
        return FIRST if was_due else number

    def ended(self, program: Hashable) -> None:
        """Should another of this name come, it is a new one."""
        self._programs.forget(program)

    def _key(self, sequence: Sequence, oldest: int) -> tuple[int, ...]:
        """`oldest` is the arrival of the first call of the program that waits."""
        program = sequence.program
        age = self._programs.age(program, oldest)
        fork = self._forks.age((program, sequence.hints.path[:-1]), sequence.arrival)
        return (-sequence.hints.priority, *age, -len(sequence.hints.path), *fork, sequence.arrival, sequence.index)

    def _by_prefix(self, entries: list[tuple[tuple[int, ...], Sequence]]) -> Iterator[Sequence]:
        """New calls, program by program: of the first programs those that find most in the tree come first."""
        head, tail = entries[:MAX_MATCHED], entries[MAX_MATCHED:]
        programs = [list(calls) for _, calls in groupby(head, key=lambda entry: entry[0][2])]
        programs.sort(key=lambda calls: -self._cached_tokens(calls[0][1]))
        for _, sequence in chain(*programs, tail):
            yield sequence


def make_order(policy: Policy, cached_tokens: CachedTokens) -> AdmissionOrder:
    """The order of this name; `cached_tokens` tells how much of a waiting sequence the tree holds."""
    if policy == "fcfs":
        return FirstCome()
    return LongestPrefix(cached_tokens) if policy == "lpm" else ProgramFirst(cached_tokens)
