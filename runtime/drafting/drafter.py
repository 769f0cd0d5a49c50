"""The protocol of this room: whoever can guess what comes next implements `Drafter`; `Speculation` asks them in turn.

Guesses cost time, never text: a drafter may be wrong, silent or late as it likes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from branchpoint.runtime.plan import Odds
from branchpoint.runtime.sequence import Sequence

__all__ = ["Drafter", "Proposal", "ask_each"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses for the tokens behind a sequence, in order.

    `grade` sorts a drafter's proposals by how sure it is (a matched length, say): acceptance is measured for each grade of each
    drafter. `odds` tell of each guess what it was drawn from, where the engine verifies by rejection and it was drawn.
    """

    tokens: tuple[int, ...]
    grade: int = 0
    odds: tuple[Odds, ...] = ()

    def cut(self, count: int) -> "Proposal":
        """The first `count` guesses."""
        if count >= len(self.tokens):
            return self
        return Proposal(self.tokens[:count], self.grade, self.odds[:count])


class Drafter(Protocol):
    """Guesses for the sequences of a batch. Used by the engine's thread only; nothing it does may change a sequence."""

    @property
    def name(self) -> str:
        """What options and reports call it."""

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """At most as many guesses for each sequence as `wanted` says (at least 1); those it has none for are left out."""

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """`sequence` has ended: forget it. With `kept` its output is whole and may be remembered as an example."""

    def close(self) -> None:
        """Give back what it holds."""


def ask_each(wanted: Mapping[Sequence, int], propose: Callable[[Sequence, int], Proposal | None]) -> dict[Sequence, Proposal]:
    """The answers of a drafter that looks at one sequence at a time."""
    found = {}
    for sequence, count in wanted.items():
        proposal = propose(sequence, count)
        if proposal is not None and proposal.tokens:
            found[sequence] = proposal
    return found
