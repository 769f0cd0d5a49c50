"""Drafts that are drawn, by a small model or a learned head: a pass for each guess, with all sequences of the batch in it.

Guesses are drawn under the sequence's own options, grammar and noise: where the two agree on a distribution they draw the same
token. Where passes come from is a `GuessSource`'s to know; what it computes with is a shadow of the sequence.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Protocol

from branchpoint.constrained.grammar import MaskRow, Matcher
from branchpoint.constrained.mask import allocate, forbid
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.walk import renew_matcher
from branchpoint.runtime.plan import Odds, RowResult, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["DrawnDrafter", "GuessSource"]


class GuessSource(Protocol):
    """Draws the next token of several sequences at once, from what it computes itself."""

    def ready(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Sequence]:
        """The sequences that can be guessed for, each with its shadow: the same tokens so far, and room for so many guesses."""

    def draw(self, shadows: Many[Sequence], masks: TokenMask | None) -> Many[RowResult]:
        """What each shadow draws behind its last token, in one pass. `masks` has a row for each."""

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended."""

    def close(self) -> None:
        """Give back what it holds."""


class DrawnDrafter:
    """Guesses with `source`, over a vocabulary of `size` tokens of which `ends` end an output. See `Drafter`.

    With `rejected` the guesses will be verified by rejection. None may be dropped then for what it is, which would change the
    distribution of what comes of it: tokens that nobody guesses behind aren't drawn.
    """

    def __init__(self, name: str, source: GuessSource, size: int, ends: frozenset[int], *, rejected: bool = False) -> None:
        self.name = name
        self._source = source
        self._size = size
        self._ends = ends
        self._rejected = rejected

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`. Matchers are moved along the guesses, and back."""
        shadows = self._source.ready(wanted)
        guesses: dict[Sequence, list[int]] = {sequence: [] for sequence in shadows}
        odds: dict[Sequence, list[Odds]] = {sequence: [] for sequence in shadows}
        going = list(shadows)
        try:
            while going:
                rows = self._source.draw([shadows[sequence] for sequence in going], self._masks(going))
                for sequence, row in zip(tuple(going), rows, strict=True):
                    if row.token is None or not self._goes_on(sequence, row.token):
                        going.remove(sequence)
                        continue
                    guesses[sequence].append(row.token)
                    shadows[sequence].tokens.append(row.token)
                    if row.odds is not None:
                        odds[sequence].append(row.odds)
                    if len(guesses[sequence]) == wanted[sequence]:
                        going.remove(sequence)
        finally:
            for sequence, tokens in guesses.items():
                _go_back(sequence, len(tokens))
        return {sequence: Proposal(tuple(tokens), 0, tuple(odds[sequence])) for sequence, tokens in guesses.items() if tokens}

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""
        self._source.forget(sequence)

    def close(self) -> None:
        """See `Drafter`."""
        self._source.close()

    def _masks(self, sequences: Many[Sequence]) -> TokenMask | None:
        """What may be guessed where the sequences stand now, a row for each; None where that is everything."""
        if not self._rejected and all(sequence.guide is None for sequence in sequences):
            return None
        rows = allocate(len(sequences), self._size)
        rows[:] = -1
        for row, sequence in zip(rows, sequences, strict=True):
            if sequence.guide is not None:
                _fill(row, sequence, sequence.guide)
            if self._rejected:
                forbid(row, [*self._ends, *sequence.sampling.stop_token_ids])
        return rows

    def _goes_on(self, sequence: Sequence, token: int) -> bool:
        """Whether others may follow this guess; its matcher is behind it then."""
        if token in self._ends or not sequence.draftable:
            return False
        if sequence.guide is None:
            return True
        try:
            return sequence.guide.advance((token,)) == 1
        except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
            renew_matcher(sequence)
            return False


def _fill(row: MaskRow, sequence: Sequence, matcher: Matcher) -> None:
    """What the grammar of `sequence` allows where its matcher stands."""
    try:
        matcher.fill(row)
    except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
        row[:] = -1
        renew_matcher(sequence)


def _go_back(sequence: Sequence, count: int) -> None:
    """Let the matcher stand at the end of the output again, where it isn't a new one that stands there."""
    if sequence.guide is None or not sequence.draftable:
        return
    try:
        sequence.guide.rollback(count)
    except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
        renew_matcher(sequence)
