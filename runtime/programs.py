"""What each run of a program has in the tree, so that eviction knows what will be needed again and what never.

Told by the scheduler which calls enter and leave, and when a program ends; speaks to the tree in hints, which are soft.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from branchpoint.radix import PrefixKey, RadixTree, Standing
from branchpoint.runtime.sequence import Sequence

__all__ = ["Programs"]


@dataclass(slots=True)
class _Branch:
    """The call that a branch of a program made last, and what it left in the tree: one key for each of its sequences, and first
    that of what they share, where only that is certain to be gone on from.
    """

    call_id: str
    standing: Standing
    keys: list[PrefixKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Fork:
    """The prefix for which the siblings come with this standing."""

    key: PrefixKey
    standing: Standing


@dataclass(slots=True)
class _Program:
    """The branches of a program by their paths, the latest last, the forks seen with what their siblings come for, and the tokens
    of all keys.
    """

    branches: dict[tuple[int, ...], _Branch] = field(default_factory=dict)
    forks: dict[tuple[int, ...], _Fork] = field(default_factory=dict)
    num_tokens: int = 0


class Programs:
    """Remembers programs that have begun, until they end or `max_tokens` tokens have been seen since: of a program that has more
    by itself, its latest branches.
    """

    def __init__(self, tree: RadixTree, max_tokens: int) -> None:
        self._tree = tree
        self._max_tokens = max_tokens
        self._programs: OrderedDict[Hashable, _Program] = OrderedDict()
        self._num_tokens = 0

    def entered(self, sequence: Sequence) -> None:
        """`sequence` was admitted. The first of a fork tells that its siblings will come for the same prefix; a branch that comes
        back by another way won't come for what it left.
        """
        hints = sequence.hints
        if not hints.program:
            return
        program = self._begun(sequence.program)
        branch = program.branches.get(hints.path)
        if branch is not None and branch.call_id != sequence.call_id:
            for old in branch.keys:
                if old.tokens != tuple(sequence.tokens[: len(old)]):
                    self._tree.expect(old, 0.0, uses=0, standing=branch.standing)
        if hints.siblings > 1 and hints.path and hints.path[:-1] not in program.forks:
            shared = PrefixKey(sequence.space, sequence.tokens[: sequence.num_computed])
            program.forks[hints.path[:-1]] = _Fork(shared, sequence.standing)
            self._count(program, 1 + len(shared))
            self._tree.expect(shared, 0.0, uses=hints.siblings - 1, standing=sequence.standing)
        self._forget_oldest()

    def preempted(self, sequence: Sequence, key: PrefixKey) -> None:
        """`sequence` has to make room, and will come back for what `key` names."""
        self._tree.expect(key, 0.0, standing=sequence.standing)

    def gave_up(self, sequence: Sequence) -> None:
        """`sequence` ends while it waits: had it been preempted, it won't come back."""
        if sequence.preemptions:
            key = PrefixKey(sequence.space, sequence.tokens)
            self._tree.expect(key, 0.0, uses=0, standing=sequence.standing)

    def left(self, sequence: Sequence, key: PrefixKey) -> None:
        """`sequence` has ended, and `key` names what it left. What its branch left before, and didn't go on with, is done for."""
        hints = sequence.hints
        if not hints.program:
            return
        program = self._begun(sequence.program)
        branch = program.branches.pop(hints.path, _Branch(sequence.call_id, sequence.standing))
        if branch.call_id != sequence.call_id:
            for old in branch.keys:
                self._count(program, -len(old))
                if key.packed[: len(old)] != old.packed:
                    self._tree.last_use(old, standing=branch.standing)
            branch = _Branch(sequence.call_id, sequence.standing)
        program.branches[hints.path] = branch
        goes_on = key
        if sequence.goes_on is not None:
            goes_on = PrefixKey(sequence.space, sequence.tokens[: sequence.goes_on])
            if not branch.keys:
                self._keep(program, branch, goes_on)
        self._keep(program, branch, key)
        if hints.returns:
            self._tree.expect(goes_on, hints.return_seconds, standing=sequence.standing)
        self._forget_oldest()

    def end(self, program: Hashable) -> None:
        """Nobody will come back for what `program` alone had."""
        ended = self._programs.pop(program, None)
        if ended is None:
            return
        self._num_tokens -= ended.num_tokens
        for branch in ended.branches.values():
            for key in branch.keys:
                self._tree.last_use(key, standing=branch.standing)
        for fork in ended.forks.values():
            self._tree.expect(fork.key, 0.0, uses=0, standing=fork.standing)

    def _begun(self, name: Hashable) -> _Program:
        """The program of this name, which goes on now."""
        program = self._programs.get(name)
        if program is None:
            program = self._programs[name] = _Program()
            self._count(program, 1)
        self._programs.move_to_end(name)
        return program

    def _forget_oldest(self) -> None:
        """Keep to `max_tokens`, but for the latest branch."""
        while self._num_tokens > self._max_tokens and len(self._programs) > 1:
            _, forgotten = self._programs.popitem(last=False)
            self._num_tokens -= forgotten.num_tokens
        program = next(reversed(self._programs.values()))
        while self._num_tokens > self._max_tokens and len(program.branches) > 1:
            path = next(iter(program.branches))
            self._count(program, -sum(map(len, program.branches.pop(path).keys)))
        while self._num_tokens > self._max_tokens and len(program.forks) > 1:
            path = next(iter(program.forks))
            self._count(program, -1 - len(program.forks.pop(path).key))

    def _keep(self, program: _Program, branch: _Branch, key: PrefixKey) -> None:
        branch.keys.append(key)
        self._count(program, len(key))

    def _count(self, program: _Program, tokens: int) -> None:
        program.num_tokens += tokens
        self._num_tokens += tokens
