"""A sequence's matcher along guesses: how many its grammar takes, and a new one where a guess has broken it.

Used when a draft is planned and when its masks are filled; in between the matcher always stands at the end of the output.
"""

from collections.abc import Sequence as Many
from typing import NoReturn

from branchpoint.constrained.grammar import MaskRow, Matcher
from branchpoint.runtime.drafting.drafter import Proposal
from branchpoint.runtime.errors import RuntimeFailure
from branchpoint.runtime.sequence import Sequence

__all__ = ["legal_guesses", "renew_matcher"]


def legal_guesses(sequence: Sequence, proposal: Proposal) -> Proposal:
    """The guesses without those that the grammar refuses, and what stands behind these; none where one breaks the matcher, which
    is then made anew. All of them while the matcher can't be asked: masks end where they are refused.
    """
    matcher = sequence.guide
    if matcher is None:
        return proposal
    try:
        return proposal.pick(_walk_tree(matcher, proposal)) if proposal.depths else proposal.cut(_walk(matcher, proposal.tokens))
    except BaseException:  # noqa: BLE001  # the boundary of a guess, a library's panics too: the sequence must not see them
        renew_matcher(sequence)
        return proposal.cut(0)


def renew_matcher(sequence: Sequence) -> None:
    """Put a fresh matcher at the end of the output in place of one that a guess broke; nothing more is drafted here.

    Where the grammar doesn't take its own output again, the new one raises RuntimeFailure whatever it is asked: the sequence ends
    with that, and no other does.
    """
    assert sequence.grammar is not None, "a matcher without its grammar"
    sequence.draftable = False
    try:
        matcher = sequence.grammar.matcher()
        whole = matcher.advance(sequence.output) == sequence.num_output
    except BaseException:  # noqa: BLE001  # the boundary of one sequence, a library's panics too: its next mask tells
        whole = False
    sequence.matcher = matcher if whole else _Lost()


def _walk(matcher: Matcher, tokens: tuple[int, ...]) -> int:
    accepted = matcher.advance(tokens)
    matcher.rollback(accepted)
    return accepted


def _walk_tree(matcher: Matcher, proposal: Proposal) -> list[int]:
    """Down along all guesses, and back; which of them the matcher took."""
    taken, at = list[int](), 0
    for number, (token, depth) in enumerate(zip(proposal.tokens, proposal.depths, strict=True)):
        if depth < at:
            matcher.rollback(at - depth)
            at = depth
        if depth == at and matcher.advance((token,)) == 1:  # else one before it was refused
            taken.append(number)
            at += 1
    matcher.rollback(at)
    return taken


class _Lost:
    """In place of a matcher that can't be had again."""

    can_end = finished = False

    def fill(self, row: MaskRow) -> None:
        self._refuse()

    def fill_loosely(self, row: MaskRow) -> NoReturn:
        self._refuse()

    def advance(self, tokens: Many[int]) -> int:
        self._refuse()

    def rollback(self, count: int) -> None:
        self._refuse()

    def forced(self) -> list[int]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeFailure("The grammar refuses the output that it had taken before; please report this constraint.")
