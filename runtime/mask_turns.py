"""Which of the sequences that decode a step takes where the masks of several are slow: these take turns, the others go on.

Asked by the scheduler. What a mask costs is CPU time, so that turns don't hang on what else the machine does.
"""

from collections.abc import Container
from collections.abc import Sequence as Many

from branchpoint.runtime.sequence import Sequence

__all__ = ["SLOW", "in_turn", "note_turns"]

SLOW = 0.002
"""Seconds of CPU from which on a token's mask is slow; nearly all take less than a tenth of it."""

_ALLOWANCE = 0.010


def in_turn(decoding: Many[Sequence]) -> Many[Sequence]:
    """Those that a step should take, in the same order: all whose masks are quick, and of the others, those first that have
    waited longest, one and as many more as fit into 10 ms. All, where nobody would be spared a wait.
    """
    slow = [sequence for sequence in decoding if sequence.mask_cost >= SLOW]
    if len(slow) < 2 or len(slow) == len(decoding):
        return decoding
    slow.sort(key=lambda sequence: sequence.passed_over, reverse=True)
    left, postponed = _ALLOWANCE, set[Sequence]()
    for place, sequence in enumerate(slow):
        left -= sequence.mask_cost
        if place and left < 0:
            postponed.add(sequence)
    return [sequence for sequence in decoding if sequence not in postponed]


def note_turns(decoding: Many[Sequence], taken: Container[Sequence]) -> None:
    """A step was planned that takes those of `decoding` which are in `taken`. Steps that come to nothing are nobody's turn."""
    for sequence in decoding:
        if sequence.mask_cost >= SLOW:
            sequence.passed_over = 0 if sequence in taken else sequence.passed_over + 1
