"""What drafting may still lose: it bounds what wrong estimates of acceptance and cost can do to those who get nothing out of it.

`Speculation` settles each step with it, and drafts nothing while it is empty.
"""

__all__ = ["Purse"]

SHARE = 0.005
"""Of the time without drafting: what drafting may cost in the long run where it gains nothing."""
FIRST = 2.0
MOST = 8.0
CREDIT = 0.5
"""Of what guesses that held saved: a batch takes as long as its longest output, so not all of it is time."""


class Purse:
    """An account in steps, those without guesses. It begins with a few, grows a little with time, and by what drafts win."""

    def __init__(self) -> None:
        self._held = FIRST

    @property
    def is_empty(self) -> bool:
        """Whether nothing more may be lost."""
        return self._held <= 0

    def settle(self, saved: float = 0.0, taken: float = 0.0) -> None:
        """A step is over whose guesses `saved` so many steps, and made it longer by `taken`."""
        self._held = min(MOST, self._held + SHARE + CREDIT * saved - taken)
