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
OPEN, FORKED, ONLY, BLIND = 0, 1, 2, 3


class GrammarDrafter:
    """Guesses along matchers of a vocabulary of `size` tokens with these bytes; see `Drafter`.

    At a fork the branch that was taken last time after the same few tokens, under the same grammar, is guessed; where nothing is
    known of it, the longest token. A mask is filled for each guess that isn't forced, so drafts are short. With more than one of
    `branches`, so many are guessed at each fork on that way, with what is forced behind them. Where the matcher can't be asked,
    what was said last time is all there is to guess.
    """

    name = "grammar"

    def __init__(self, size: int, bytes_of: Callable[[int], bytes], branches: int = 1) -> None:
        self._size = size
        self._bytes_of = bytes_of
        self._branches = branches
        self._choices = Choices(branches)

    def propose(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, Proposal]:
        """See `Drafter`. The grade says whether the first guess had no rival, few, or was only seen before, or nobody looked."""
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
        tokens: list[int] = []
        matcher = sequence.guide
        if matcher is None:
            return self._blind(sequence, count)
        forks: list[tuple[int, list[int]]] = []
        try:
            grade = self._extend(sequence, matcher, tokens, forks, count)
            others = self._others(matcher, len(tokens), forks, count)
        except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
            renew_matcher(sequence)
            return None
        return Proposal(tuple(tokens[:count]), grade).beside(others)

    def _blind(self, sequence: Sequence, count: int) -> Proposal:
        """What was said after the same tokens, without a look at the grammar."""
        assert sequence.grammar is not None, "a matcher without its grammar"
        tokens, history = list[int](), sequence.tokens[-Choices.CONTEXT :]
        while len(tokens) < count and (seen := self._choices.after(sequence.space, sequence.grammar, [*history, *tokens])):
            tokens.append(seen[0])
        return Proposal(tuple(tokens), BLIND)

    def _extend(
        self, sequence: Sequence, matcher: Matcher, tokens: list[int], forks: list[tuple[int, list[int]]], count: int
    ) -> int:
        """Advance `matcher` along guesses, which are put into `tokens`, and what else is likely behind how many of them into
        `forks`; the grade of the first.
        """
        grade = OPEN
        history = sequence.tokens[-Choices.CONTEXT :]
        while len(tokens) < count and not matcher.finished:
            forced = matcher.forced() if tokens else []
            if not forced:
                guesses, kind = self._guess(sequence, matcher, [*history, *tokens])
                if not guesses:
                    break
                grade = kind if not tokens else grade
                forced = guesses[:1]
                if guesses[1:]:
                    forks.append((len(tokens), guesses[1:]))
            taken = matcher.advance(forced)
            tokens += forced[:taken]
            if taken < len(forced):
                break
        return grade

    def _guess(self, sequence: Sequence, matcher: Matcher, history: list[int]) -> tuple[list[int], int]:
        """The likeliest next tokens, if there are any worth naming, and how sure the first is."""
        row = allocate(1, self._size)[0]
        matcher.fill(row)
        allowed = iterate_allowed(row)
        if len(allowed) == 1:
            return [int(allowed[0])], ONLY
        seen = self._choices.after(sequence.space, sequence.grammar, history) if sequence.grammar else ()
        guesses = [token for token in seen if _holds(allowed, token)]
        few = len(allowed) <= FEW
        if few and len(guesses) < self._branches:
            others = sorted(set(allowed.tolist()) - set(guesses), key=lambda token: (-len(self._bytes_of(token)), token))
            guesses += others[: self._branches - len(guesses)]
        return guesses, FORKED if few else OPEN

    def _others(
        self, matcher: Matcher, at: int, forks: list[tuple[int, list[int]]], count: int
    ) -> list[tuple[int, tuple[int, ...]]]:
        """The other tokens of all `forks`, by their place, each with what has no rival behind it. `matcher` stands behind `at`
        guesses, and is brought back to where they begin.
        """
        found = []
        for place, tokens in reversed(forks):
            matcher.rollback(at - place)
            at = place
            for token in tokens:
                way, following = list[int](), [token]
                while following and (taken := matcher.advance(following)):
                    way += following[:taken]
                    goes_on = len(way) < count - place and taken == len(following) and not matcher.finished
                    following = (matcher.forced() or self._only(matcher)) if goes_on else []
                matcher.rollback(len(way))
                found.append((place, tuple(way[: count - place])))
        matcher.rollback(at)
        return found

    def _only(self, matcher: Matcher) -> list[int]:
        """The one token that may come next; none where several may."""
        row = allocate(1, self._size)[0]
        matcher.fill(row)
        allowed = iterate_allowed(row)
        return [int(allowed[0])] if len(allowed) == 1 else []


def _holds(allowed: npt.NDArray[np.int64], token: int) -> bool:
    place = int(np.searchsorted(allowed, token))
    return place < len(allowed) and int(allowed[place]) == token
