"""Drafts from the grammar: where it leaves one token, or a few as inside enums and keys, the likeliest and what it forces behind.

What is forced outright needs no draft, the engine appends it; here are the places in between, which cost a step each otherwise.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from branchpoint.constrained.grammar import Matcher
from branchpoint.constrained.mask import allocate, iterate_allowed
from branchpoint.runtime.drafting.choices import Choices
from branchpoint.runtime.drafting.drafter import Proposal, ask_each
from branchpoint.runtime.drafting.walk import renew_matcher
from branchpoint.runtime.sequence import Sequence

__all__ = ["GrammarDrafter"]

FEW = 64
"""As many allowed tokens may be a choice between a few strings; more are free text."""
OPEN, FORKED, ONLY = 0, 1, 2


class GrammarDrafter:
    """Guesses along matchers of a vocabulary of `size` tokens with these bytes; see `Drafter`.

    At a fork the branch that was taken last time after the same few tokens, under the same grammar, is guessed; where nothing is
    known of it, the longest token. A mask is filled for each guess that isn't forced, so drafts are short.
    """

    name = "grammar"

    def __init__(self, size: int, bytes_of: Callable[[int], bytes]) -> None:
        self._size = size
        self._bytes_of = bytes_of
        self._choices = Choices()

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`. The grade says whether the first guess had no rival, few, or was only seen before."""
        held = {sequence: count for sequence, count in wanted.items() if sequence.matcher is not None}
        return ask_each(held, self._propose)

    def finish(self, sequence: Sequence, *, kept: bool) -> None:
        """See `Drafter`."""
        if kept and sequence.grammar is not None:
            self._choices.remember(sequence.space, sequence.grammar, sequence.tokens, sequence.num_prompt)

    def close(self) -> None:
        """See `Drafter`."""
        self._choices.clear()

    def _propose(self, sequence: Sequence, count: int) -> Proposal | None:
        matcher = sequence.matcher
        assert matcher is not None
        tokens: list[int] = []
        try:
            grade = self._extend(sequence, matcher, tokens, count)
            matcher.rollback(len(tokens))
        except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
            renew_matcher(sequence)
            return None
        return Proposal(tuple(tokens[:count]), grade)

    def _extend(self, sequence: Sequence, matcher: Matcher, tokens: list[int], count: int) -> int:
        """Advance `matcher` along guesses, which are put into `tokens`; the grade of the first."""
        grade = OPEN
        history = sequence.tokens[-Choices.CONTEXT :]
        while len(tokens) < count and not matcher.finished:
            forced = matcher.forced() if tokens else []
            if not forced:
                guess, kind = self._guess(sequence, matcher, [*history, *tokens])
                if guess is None:
                    break
                grade = kind if not tokens else grade
                forced = [guess]
            taken = matcher.advance(forced)
            tokens += forced[:taken]
            if taken < len(forced):
                break
        return grade

    def _guess(self, sequence: Sequence, matcher: Matcher, history: list[int]) -> tuple[int | None, int]:
        """The likeliest next token, if there is one worth naming, and how sure that is."""
        row = allocate(1, self._size)[0]
        matcher.fill(row)
        allowed = iterate_allowed(row)
        if len(allowed) == 1:
            return int(allowed[0]), ONLY
        seen = self._choices.after(sequence.space, sequence.grammar, history) if sequence.grammar else None
        if seen is not None and _holds(allowed, seen):
            return seen, FORKED if len(allowed) <= FEW else OPEN
        if len(allowed) > FEW:
            return None, OPEN
        return max(allowed.tolist(), key=lambda token: len(self._bytes_of(token))), FORKED


def _holds(allowed: npt.NDArray[np.int64], token: int) -> bool:
    place = int(np.searchsorted(allowed, token))
    return place < len(allowed) and int(allowed[place]) == token
