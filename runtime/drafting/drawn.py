"""Drafts that are drawn, by a small model or a learned head: a pass for each guess, with all sequences of the batch in it.

Guesses are drawn under the sequence's own options, grammar and noise: where the two agree on a distribution they draw the same
token. Where passes come from is a `GuessSource`'s to know; what it computes with is a shadow of the sequence.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol

from branchpoint.constrained.grammar import MaskRow, Matcher
from branchpoint.constrained.mask import allocate, forbid
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.drafting.walk import renew_matcher
from branchpoint.runtime.plan import UNKNOWN, GuessesUnderWay, Odds, RowResult, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["DrawnDrafter", "GuessSource"]


class GuessSource(Protocol):
    """Draws the next token of several sequences at once, from what it computes itself."""

    def ready(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Sequence]:
        """The sequences that can be guessed for, each with its shadow: the same tokens so far, and room for so many guesses."""

    def draw(self, shadows: Many[Sequence], masks: TokenMask | None) -> Many[RowResult]:
        """What each shadow draws behind its last token, in one pass. `masks` has a row for each."""

    def draw_on(self, shadows: Many[Sequence], counts: Many[int]) -> tuple[GuessesUnderWay, Many[tuple[int, ...]]] | None:
        """Launch passes for so many tokens of each shadow where nobody is needed between them, nor before the step that verifies
        them; None where somebody is. With each shadow's rows.
        """

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended."""

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(slots=True)
class _Draft:
    """Guesses for a sequence so far, at most `most`, which its `shadow` has too."""

    shadow: Sequence
    most: int
    tokens: list[int] = field(default_factory=list)
    odds: list[Odds] = field(default_factory=list)


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
        if launched := self._launched(shadows, wanted):
            return launched
        drafts = {sequence: _Draft(shadow, wanted[sequence]) for sequence, shadow in shadows.items()}
        going = list(drafts)
        try:
            while going:
                rows = self._source.draw([drafts[sequence].shadow for sequence in going], self._masks(going))
                going = [one for one, row in zip(going, rows, strict=True) if self._take(one, drafts[one], row)]
        finally:
            for sequence, draft in drafts.items():
                _go_back(sequence, len(draft.tokens))
        return {one: Proposal(tuple(draft.tokens), 0, tuple(draft.odds)) for one, draft in drafts.items() if draft.tokens}

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""
        self._source.forget(sequence)

    def close(self) -> None:
        """See `Drafter`."""
        self._source.close()

    def _launched(self, shadows: Mapping[Sequence, Sequence], wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """Guesses that nobody needs to know before they are verified, since nothing hangs on them but logits; else none."""
        if not shadows or self._rejected or any(sequence.looks_back for sequence in shadows):
            return {}
        launched = self._source.draw_on(list(shadows.values()), [wanted[sequence] for sequence in shadows])
        if launched is None:
            return {}
        guesses, rows = launched
        return {
            sequence: Proposal((UNKNOWN,) * len(its), sources=its, under_way=guesses)
            for sequence, its in zip(shadows, rows, strict=True)
        }

    def _take(self, sequence: Sequence, draft: "_Draft", row: RowResult) -> bool:
        """Put what was drawn behind the guesses for `sequence`; whether another one is wanted."""
        if row.token is None or not self._goes_on(sequence, row.token):
            return False
        draft.tokens.append(row.token)
        draft.shadow.tokens.append(row.token)
        if row.odds is not None:
            draft.odds.append(row.odds)
        return len(draft.tokens) < draft.most

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
