"""What each run of a program has in the tree, so that eviction knows what will be needed again and what never.

Told by the scheduler which calls enter and leave, and when a program ends; speaks to the tree in hints, which are soft.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from branchpoint.radix import PrefixKey, RadixTree
from branchpoint.runtime.sequence import Sequence

__all__ = ["Programs"]


@dataclass(slots=True)
class _Branch:
    """The call that a branch of a program made last, and what it left in the tree: one key for each of its sequences."""

    call_id: str
    keys: list[PrefixKey] = field(default_factory=list)


@dataclass(slots=True)
class _Program:
    """The branches of a program by their paths, the latest last, the forks seen, and the tokens of all keys, a fork as one."""

    branches: dict[tuple[int, ...], _Branch] = field(default_factory=dict)
    forks: set[Hashable] = field(default_factory=set)
    num_tokens: int = 0


class Programs:
    """Remembers programs that have begun, until they end or `max_tokens` tokens have been seen since: of a program that has more
    by itself, its latest branches.
    """

    def __init__(self, tree: RadixTree, max_tokens: int) -> None:
        self._tree = tree
        self._max_tokens = max_tokens
        self._programs: OrderedDict[str, _Program] = OrderedDict()
        self._num_tokens = 0

    def entered(self, sequence: Sequence) -> None:
        """`sequence` was admitted: the first of a fork tells that its siblings will come for the same prefix."""
        hints = sequence.hints
        if not hints.program or hints.siblings < 2 or not hints.path:
            return
        program = self._begun(hints.program)
        if hints.path[:-1] in program.forks:
            return
        program.forks.add(hints.path[:-1])
        self._count(program, 1)
        self._forget_oldest()
        if sequence.num_computed:
            shared = PrefixKey(sequence.namespace, sequence.tokens[: sequence.num_computed])
            self._tree.expect(shared, 0.0, uses=hints.siblings - 1, standing=sequence.standing)

    def preempted(self, sequence: Sequence, key: PrefixKey) -> None:
        """`sequence` has to make room, and will come back for what `key` names."""
        self._tree.expect(key, 0.0, standing=sequence.standing)

    def left(self, sequence: Sequence, key: PrefixKey) -> None:
        """`sequence` has ended, and `key` names what it left. What its branch left before, and didn't go on with, is done for."""
        hints = sequence.hints
        if not hints.program:
            return
        program = self._begun(hints.program)
        branch = program.branches[hints.path] = program.branches.pop(hints.path, _Branch(sequence.call_id))
        if branch.call_id != sequence.call_id:
            for old in branch.keys:
                self._count(program, -len(old))
                if key.packed[: len(old)] != old.packed:
                    self._tree.last_use(old)
            branch.call_id, branch.keys = sequence.call_id, []
        branch.keys.append(key)
        self._count(program, len(key))
        if hints.returns:
            self._tree.expect(key, hints.return_seconds, standing=sequence.standing)
        self._forget_oldest()

    def end(self, program: str) -> None:
        """Nobody will come back for what `program` alone had."""
        ended = self._programs.pop(program, None)
        if ended is None:
            return
        self._num_tokens -= ended.num_tokens
        for branch in ended.branches.values():
            for key in branch.keys:
                self._tree.last_use(key)

    def _begun(self, name: str) -> _Program:
        """The program of this name, which goes on now."""
        program = self._programs.setdefault(name, _Program())
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
        if self._num_tokens > self._max_tokens or len(program.forks) > self._max_tokens // 2:
            self._count(program, -len(program.forks))
            program.forks.clear()

    def _count(self, program: _Program, tokens: int) -> None:
        program.num_tokens += tokens
        self._num_tokens += tokens
