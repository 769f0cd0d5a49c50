"""For whom nobody had anything to guess lately: such sequences are asked for less often.

Kept by `Speculation`, which asks it in each step.
"""

from dataclasses import dataclass

from branchpoint.runtime.sequence import Sequence

__all__ = ["Silences"]

LONGEST = 32


@dataclass(slots=True)
class _Silence:
    """After how many more steps a sequence is asked for again, and how often nothing came of that."""

    left: int = 0
    length: int = 0


class Silences:
    """Those of an engine's sequences. Its memory grows with those that live."""

    def __init__(self) -> None:
        self._silences: dict[Sequence, _Silence] = {}

    def ends(self, sequence: Sequence) -> bool:
        """Whether `sequence` is to be asked for in this step."""
        silence = self._silences.get(sequence)
        if silence is None or not silence.left:
            return True
        silence.left -= 1
        return False

    def note(self, sequence: Sequence, *, spoke: bool) -> None:
        """`sequence` was asked for, and somebody `spoke`, or nobody did."""
        if spoke:
            self.forget(sequence)
            return
        silence = self._silences.setdefault(sequence, _Silence())
        silence.length = min(LONGEST, silence.length + 1)
        silence.left = silence.length // 4

    def forget(self, sequence: Sequence) -> None:
        """`sequence` has ended, or is asked for in each step again."""
        self._silences.pop(sequence, None)
