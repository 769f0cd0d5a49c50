"""A learned head as a source of guesses: it reads the pages of the sequences themselves, where it has followed the model.

Guesses behind a sequence's last page are computed on spare pages, which are anybody's again with the next step. Used through
`DrawnDrafter`.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Many

from branchpoint.runtime.drafting.shadow import catch_up, shadow_of
from branchpoint.runtime.plan import RowResult, Runner, Slot, StepPlan, TokenMask
from branchpoint.runtime.sequence import Sequence

__all__ = ["HeadSource"]


class HeadSource:
    """Draws with the head behind `runner`, in a context of `context_length` tokens. See `GuessSource`.

    Pages from `spare` on are free for guesses of one step. Only sequences whose last token alone is without KV are guessed for:
    the head goes on from the hidden state before it.
    """

    def __init__(self, runner: Runner, context_length: int, spare: range, *, own_noise: bool = False) -> None:
        self._runner = runner
        self._context = context_length
        self._spare = spare
        self._own_noise = own_noise
        self._shadows: dict[Sequence, Sequence] = {}

    def ready(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Sequence]:
        """See `GuessSource`."""
        found: dict[Sequence, Sequence] = {}
        used = 0
        for sequence, count in wanted.items():
            length = sequence.num_tokens + count - 1
            if not 0 < sequence.num_computed == sequence.num_tokens - 1 or length > self._context:
                continue
            needed = max(0, -(-length // self._runner.page_size) - len(sequence.pages))
            if used + needed > len(self._spare):
                continue
            if sequence not in self._shadows:
                self._shadows[sequence] = shadow_of(sequence, own_noise=self._own_noise)
            shadow = found[sequence] = self._shadows[sequence]
            catch_up(shadow, sequence)
            shadow.pages = [*sequence.pages, *self._spare[used : used + needed]]
            used += needed
        return found

    def draw(self, shadows: Many[Sequence], masks: TokenMask | None) -> Many[RowResult]:
        """See `GuessSource`."""
        lasts = [shadow.num_tokens - 1 for shadow in shadows]
        plan = StepPlan(tuple(Slot(shadow, last, 1, (last,)) for shadow, last in zip(shadows, lasts, strict=True)))
        return [rows[0] for rows in self._runner.execute(plan, lambda: masks).rows]

    def draw_on(self, shadows: Many[Sequence], counts: Many[int]) -> None:
        """See `GuessSource`: a pass reads the token before it on the host."""

    def forget(self, sequence: Sequence) -> None:
        """See `GuessSource`."""
        self._shadows.pop(sequence, None)

    def close(self) -> None:
        """See `GuessSource`."""
        self._shadows.clear()
