"""What one forward pass computes, and what came out of it. No phases: prefill, decode, forced, drafted and scored tokens are
all the same slot with other numbers.

The scheduler makes a `StepPlan`, the runner answers with a `StepResult`, the scheduler commits the two together.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.errors import MatcherError
from branchpoint.errors import BranchpointError
from branchpoint.radix import Swap
from branchpoint.runtime.errors import RuntimeFailure
from branchpoint.runtime.sequence import Sequence

__all__ = [
    "UNKNOWN",
    "Copy",
    "GuessesUnderWay",
    "MaskSource",
    "Odds",
    "PageCopy",
    "Refusal",
    "RowResult",
    "Runner",
    "Slot",
    "StepPlan",
    "StepResult",
    "StepUnderWay",
    "TokenMask",
    "TokenMove",
    "asked",
]

TokenMask = npt.NDArray[np.int32]
"""Packed mask of a batch: int32 [wanted rows of the plan, mask_words(vocabulary)], all bits set where nothing is asked."""

Odds = npt.NDArray[np.float32]
"""What a guess was drawn from: probabilities float32 [vocabulary]."""

UNKNOWN = -1
"""In place of a guess that is drawn only while the step which verifies it is launched."""

MaskSource = Callable[[], TokenMask | None]
"""Called once by the runner, after the forward pass was issued; waits for the masks. None: no row is masked."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Compute `count` tokens of `sequence` from position `start` on.

    `rows` are the positions whose logits are wanted (ascending, inside the slot). The row at position p predicts the token at
    p + 1: where `sequence.tokens[p + 1]` is known it is scored, and where `sample` is true a token is drawn with the noise of
    position p + 1 (verification draws at every drafted position).

    The last `len(draft)` of the `count` tokens are guesses that stand behind the sequence's own; each has a row. A row holds only
    while what was drawn before it agrees with the guesses. `odds` tell of each guess what it was drawn from, where verifying
    needs that. Where the guesses are a tree, `depths` tell how many of them each one stands behind, in the order of
    `kernels.tree`; tokens, rows and KV then lie as if they were a chain, and a row's number is no longer its position.
    """

    sequence: Sequence
    start: int
    count: int
    rows: tuple[int, ...] = ()
    sample: bool = True
    draft: tuple[int, ...] = ()
    odds: tuple[Odds, ...] = ()
    depths: tuple[int, ...] = ()

    @property
    def first_guess(self) -> int:
        """The position of the draft's first token: behind the last one that is certain."""
        return self.start + self.count - len(self.draft)

    @property
    def tokens(self) -> list[int]:
        """The `count` tokens to compute, guesses at the end."""
        return [*self.sequence.tokens[self.start : self.first_guess], *self.draft]

    def position_of(self, row: int) -> int:
        """The position of the token that row number `row` computes."""
        place = row - self.first_guess
        return self.first_guess + self.depths[place] if self.depths and place >= 0 else row

    def row_behind(self, row: int, token: int | None = None) -> int | None:
        """The row of the guess behind that of `row` which is `token` (of the first guess there, if None); None where none is."""
        first, depth = row + 1 - self.first_guess, self.position_of(row) + 1 - self.first_guess
        if not 0 <= first < len(self.draft):
            return None
        for at in range(first, len(self.draft)) if self.depths else (first,):
            its = self.depths[at] if self.depths else at
            if its < depth:
                break
            if its == depth and token in (None, self.draft[at]):
                return self.first_guess + at
        return None

    def guess_behind(self, row: int) -> int | None:
        """The first guess for the token that row number `row` predicts, None where there is none."""
        behind = self.row_behind(row)
        return None if behind is None else self.draft[behind - self.first_guess]

    def way_to(self, row: int) -> tuple[int, ...]:
        """The guesses that row number `row` sees, its own the last."""
        guesses = self.draft[: max(0, row + 1 - self.first_guess)]
        if not self.depths:
            return guesses
        way: list[int] = []
        for token, depth in zip(guesses, self.depths, strict=False):
            way[depth:] = [token]
        return tuple(way)

    def odds_at(self, position: int) -> Odds | None:
        """What the drafted token of `position` was drawn from, None where that isn't told."""
        place = position - self.first_guess
        return self.odds[place] if 0 <= place < len(self.odds) else None


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the KV of the first `count` tokens of page `source` into page `target`, in all layers, before the forward pass."""

    source: int
    target: int
    count: int


@dataclass(frozen=True, slots=True)
class TokenMove:
    """Copy the KV of single tokens between `sources` and `targets`, places of the cache, in all layers, all at once."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]


Copy = PageCopy | TokenMove | Swap
"""A copy within the device, or of whole pages between it and host memory."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One batch. Wanted rows are numbered in the order of slots, then of positions. `copies` are made in their order.

    A plan whose tokens aren't all known has `sources`, for each slot the rows whose tokens are its last ones: one of the step
    under way, where the plan runs ahead of what that draws, or as many as it verifies of the `guesses` that are.
    """

    slots: tuple[Slot, ...]
    copies: tuple[Copy, ...] = ()
    sources: tuple[tuple[int, ...], ...] = ()
    guesses: "GuessesUnderWay | None" = None

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass computes."""
        return sum(slot.count for slot in self.slots)

    @property
    def fed(self) -> list[tuple[int, int]]:
        """Which tokens of the batch are what which rows under way draw: places and rows."""
        found, end = list[tuple[int, int]](), 0
        for slot, rows in zip(self.slots, self.sources, strict=False):
            end += slot.count
            found += zip(range(end - len(rows), end), rows, strict=True)
        return found

    @property
    def num_rows(self) -> int:
        """Rows whose logits are wanted."""
        return sum(len(slot.rows) for slot in self.slots)

    def guessed(self) -> "StepPlan":
        """The plan with the guesses that were under way, now that its step is done: those were drawn before."""
        if self.guesses is None:
            return self
        tokens = self.guesses.finish()
        slots = tuple(
            replace(slot, draft=tuple(tokens[row] for row in rows)) if rows else slot
            for slot, rows in zip(self.slots, self.sources, strict=True)
        )
        return replace(self, slots=slots, sources=(), guesses=None)


class Refusal(str):
    """Why a row has no token, where its grammar says so: the caller's error, not the engine's."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one wanted row gave.

    `token` is the sampled id (None where the slot doesn't sample), `logprob` its raw log-probability (None unless the sequence
    asked for logprobs). `known` is the raw log-probability of the sequence's own next token, where there is one and the slot
    scores or logprobs are asked (the prompt's for prompt tokens, else the output's: forced tokens have one too). `top` are the
    best (id, logprob) of the raw distribution, `asked` the raw log-probabilities of the tokens in `sequence.asked` of this row.
    `error` says why the row is unusable (NaN logits); its sequence ends with an error. Where the sequence is pooled, no logits
    are made: `hidden`, float32 [hidden_size], is the sum of the slot's hidden states, in its last row. A draft model's row tells
    with `odds` what its token was drawn from, where verifying needs that. Where there is a `doubt`, its grammar may still refuse
    the token: asked, it gives the row as it is. A token that was `replaced` then isn't the one that a step ahead has computed.
    """

    token: int | None
    logprob: float | None = None
    known: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: str | None = None
    asked: tuple[float, ...] = ()
    hidden: npt.NDArray[np.float32] | None = None
    odds: Odds | None = None
    replaced: bool = False
    doubt: "Callable[[], RowResult] | None" = field(default=None, compare=False)

    @property
    def failure(self) -> BranchpointError | None:
        """What ends the sequence, where the row is unusable."""
        if self.error is None:
            return None
        return MatcherError(self.error) if isinstance(self.error, Refusal) else RuntimeFailure(self.error)


def asked(rows: tuple[RowResult, ...]) -> tuple[RowResult, ...]:
    """Rows without doubts."""
    return tuple(row.doubt() if row.doubt else row for row in rows) if any(row.doubt for row in rows) else rows


@dataclass(frozen=True, slots=True)
class StepResult:
    """One tuple of row results for each slot of the plan, aligned with the slot's `rows`."""

    rows: tuple[tuple[RowResult, ...], ...]
    forward_seconds: float = 0.0

    def asked(self) -> "StepResult":
        """The result without doubts."""
        return replace(self, rows=tuple(map(asked, self.rows)))


class StepUnderWay(Protocol):
    """A step whose forward pass was launched."""

    def draw(self, masks: MaskSource) -> None:
        """Launch the drawing of its rows; asked once, and waits for the masks alone."""

    def finish(self) -> StepResult:
        """Wait for what it gives; asked once."""


class GuessesUnderWay(Protocol):
    """Guesses whose passes, the `steps`, were launched to draw. Rows are numbered through all of them."""

    @property
    def steps(self) -> Many[StepUnderWay]:
        """The passes in their order."""

    def finish(self) -> Many[int]:
        """Wait for the token of each row, `UNKNOWN` where there is none; asked once."""


class Runner(Protocol):
    """Turns plans into tokens; owns weights, KV tensors and sampler. `runner.py` is the torch one; tests have a scripted one."""

    @property
    def num_pages(self) -> int:
        """Pages in the KV pool."""

    @property
    def page_size(self) -> int:
        """Tokens in a page."""

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        """Copy pages, run the forward pass, sample. Raises only on a fault of the device, copies having been made."""
