"""Drafts from the radix tree: what earlier runs of the same program said after this very prefix.

Between the tree, which is only read, and `Speculation`. A stretch that was read is followed while it comes true.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from branchpoint.runtime.drafting.drafter import Proposal, ask_each
from branchpoint.runtime.sequence import Sequence

__all__ = ["RadixDrafter", "ReadContinuation", "ReadForks"]

ReadContinuation = Callable[[Sequence, int], tuple[int, ...]]
"""Up to so many tokens that the tree holds behind all tokens of a sequence."""

Forks = tuple[tuple[int, tuple[int, ...]], ...]
ReadForks = Callable[[Sequence, int, int, int], Forks]
"""Behind how many of these tokens other branches begin, and what these say: see `KVCache.read_forks`."""

STRETCH = 256
PATIENCE = 32
REACH = 8
"""Tokens that are looked at of a branch beside the likeliest."""


@dataclass(slots=True)
class _Script:
    """What the tree said behind `start` tokens; `retry` is the length from which on an empty answer is asked for again."""

    start: int = 0
    tokens: tuple[int, ...] = ()
    forks: Forks = ()
    agreed: int = 0
    retry: int = 0


class RadixDrafter:
    """Reads ahead with `read`, `STRETCH` tokens at a time. See `Drafter`.

    A prefix that the tree doesn't hold is asked for again `PATIENCE` tokens later: another call may have said the same by then.
    With more than one of `branches`, so many are guessed where earlier runs went different ways.
    """

    name = "radix"

    def __init__(self, read: ReadContinuation, read_forks: ReadForks | None = None, branches: int = 1) -> None:
        self._read = read
        self._read_forks = read_forks if branches > 1 else None
        self._branches = branches
        self._scripts: dict[Sequence, _Script] = {}

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`. The grade tells how much of the stretch has come true already."""
        return ask_each(wanted, self._propose)

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""
        self._scripts.pop(sequence, None)

    def close(self) -> None:
        """See `Drafter`."""
        self._scripts.clear()

    def _propose(self, sequence: Sequence, count: int) -> Proposal | None:
        script = self._scripts.setdefault(sequence, _Script())
        length = sequence.num_tokens
        if not self._follows(script, sequence) or script.start + len(script.tokens) <= length:
            if length < script.retry:
                return None
            tokens = self._read(sequence, STRETCH)
            script.start, script.tokens, script.agreed = length, tokens, 0
            if self._read_forks and tokens:
                script.forks = self._read_forks(sequence, len(tokens), self._branches - 1, REACH)
            script.retry = 0 if tokens else length + PATIENCE
        place = length - script.start
        line = Proposal(script.tokens[place : place + count], min(place.bit_length(), 4))
        return line.beside(
            (at - place, way[: count - (at - place)]) for at, way in script.forks if place <= at < place + len(line.tokens)
        )

    def _follows(self, script: _Script, sequence: Sequence) -> bool:
        """Whether all that came since has been as the stretch says."""
        place = sequence.num_tokens - script.start
        fresh = tuple(sequence.tokens[script.start + script.agreed :])
        if script.tokens[script.agreed : place] != fresh:
            return False
        script.agreed = place
        return True
