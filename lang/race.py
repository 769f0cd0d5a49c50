"""Choosing between the branches of a fork as they finish: the first that fits, a vote, the best (LANGUAGE F4).

`Fork.first`, `vote` and `best` are made of these. As soon as the choice is certain the others are given up: their calls are
aborted, and the engine frees their pages with its next step.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol, SupportsFloat

from branchpoint.lang.errors import Incomplete, ProgramError, ProgramMistake
from branchpoint.lang.state import State
from branchpoint.lang.stream import Replay
from branchpoint.lang.variables import Fixed

__all__ = ["Best", "First", "Judge", "Vote", "adecide", "decide", "settle"]


class Judge(Protocol):
    """Looks at branches as they finish."""

    def take(self, branch: State) -> bool:
        """Look at one; whether the choice is certain now. May raise what reading the branch raises."""

    @property
    def winner(self) -> State | None:
        """The branch that is ahead."""


class First:
    """The first to finish that `fits`."""

    def __init__(self, fits: Callable[[State], object] | None) -> None:
        self._fits = fits
        self.winner: State | None = None

    def take(self, branch: State) -> bool:
        """See `Judge`."""
        if self._fits is None or self._fits(branch):
            self.winner = branch
        return self.winner is not None


class Vote:
    """The value of `name` that most branches have; of equally many, the one that stands in the earlier branch."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._outstanding = size
        self._ballots: list[tuple[object, list[State]]] = []

    def _ranked(self) -> list[tuple[object, list[State]]]:
        return sorted(self._ballots, key=lambda ballot: (-len(ballot[1]), min(branch.branch for branch in ballot[1])))

    def take(self, branch: State) -> bool:
        """See `Judge`."""
        self._outstanding -= 1
        value = branch[self._name]
        voters = next((voters for known, voters in self._ballots if known == value), None)
        if voters is None:
            self._ballots.append((value, [branch]))
        else:
            voters.append(branch)
        counts = [len(ballot[1]) for ballot in self._ranked()] + [0]
        return counts[0] > counts[1] + self._outstanding

    @property
    def winner(self) -> State | None:
        """The earliest branch of those that have the value."""
        return min(self._ranked()[0][1], key=lambda branch: branch.branch) if self._ballots else None


class Best:
    """The one with the highest score, of equal ones the earlier branch; at once where a score reaches `enough`."""

    def __init__(self, score: Callable[[State], float], enough: float | None) -> None:
        self._score = score
        self._enough = enough
        self._scores: list[tuple[float, State]] = []

    def take(self, branch: State) -> bool:
        """See `Judge`."""
        score = self._score(branch)
        if not isinstance(score, SupportsFloat) or math.isnan(score):
            raise ProgramMistake(f"best needs a number for each branch, got {score!r:.80} for branch {branch.branch}.")
        self._scores.append((score, branch))
        return self._enough is not None and score >= self._enough

    @property
    def winner(self) -> State | None:
        """The best so far."""
        return min(self._scores, key=lambda scored: (-scored[0], scored[1].branch))[1] if self._scores else None


class _Race:
    """One decision under way."""

    def __init__(self, branches: Sequence[State], judge: Judge) -> None:
        self._branches = branches
        self._judge = judge
        self._failed: BaseException | None = None
        self.finished: Replay[State] = Replay()
        for branch in branches:
            if (gate := branch.here()[1]) is None:
                self.finished.put(branch)
            else:
                gate.place.context.check_caller()
                gate.done.then(functools.partial(self.finished.put, branch))

    def take(self, branch: State) -> bool:
        """Whether the choice is certain; a branch that failed is out of it."""
        if (error := branch.error()) is not None:
            self._failed = error
        else:
            try:
                return self._judge.take(branch)
            except (ProgramError, Incomplete) as error:
                self._failed = error
        return False

    def end(self) -> State:
        """The winner; the others are given up. Raises ProgramError where there is none."""
        winner = self._judge.winner
        losers = [branch.place for branch in self._branches if branch is not winner]
        self._branches[0].place.context.drop(losers, "another branch was chosen" if winner else "no branch was chosen")
        if winner is None:
            program = self._branches[0].place.context.program
            error = ProgramError(f"None of {len(self._branches)} branches of {program!r} can be chosen.", program=program)
            raise error from self._failed
        return winner


def decide(branches: Sequence[State], judge: Judge) -> State:
    """Wait until `judge` is certain, or all branches have finished. Raises ProgramError where there is no winner."""
    race = _Race(branches, judge)
    for _, branch in zip(branches, race.finished, strict=False):  # branches first: it ends without waiting for one more
        if race.take(branch):
            break
    return race.end()


async def adecide(branches: Sequence[State], judge: Judge) -> State:
    """As `decide`, waiting in the caller's event loop."""
    race = _Race(branches, judge)
    left = len(branches)
    async for branch in race.finished:
        left -= 1
        if race.take(branch) or not left:
            break
    return race.end()


def settle(parent: State, winner: State, name: str | None = None) -> None:
    """Give the parent the winner's variables as they are, or only the value of `name`."""
    if name is not None:
        parent.bind(name, Fixed(name, winner[name]))
        return
    for own, variable in winner.own.items():
        parent.bind(own, variable)
