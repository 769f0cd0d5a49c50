"""What judging may cost for one token: an allowance that a cursor takes along to whatever thread asks.

Counted in verdicts instead of time, so that what is refused doesn't depend on the machine. `judge.py` spends what
`engines/judged.py` grants.
"""

import threading

from branchpoint.constrained.errors import MatcherError

__all__ = ["Allowance", "Work"]

_MOST = 10_000
_UNBOUNDED = 1 << 62


class Work(threading.local):
    """How many verdicts this thread may still give; without an allowance, any number."""

    left = _UNBOUNDED

    def spend(self) -> None:
        """Count a verdict. Raises MatcherError where it is one too many."""
        self.left -= 1
        if self.left < 0:
            raise MatcherError(
                f"Which token may come next takes more than {_MOST:,} verdicts under this schema; give it fewer branches."
            )


class Allowance:
    """What one cursor may spend where it stands, over all questions: `with` it, the thread's work counts."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._left = _MOST

    def renew(self) -> None:
        """The cursor has moved."""
        self._left = _MOST

    def __enter__(self) -> None:
        self._work.left = self._left

    def __exit__(self, *_: object) -> None:
        self._left, self._work.left = self._work.left, _UNBOUNDED
