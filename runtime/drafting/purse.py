"""What drafting may still lose: it bounds what wrong estimates of acceptance and cost can do to those who get nothing out of it.

`Speculation` settles each step with it, and drafts nothing while it is empty.
"""

__all__ = ["Purse"]

SHARE = 0.005
"""Of the time without drafting: what drafting may cost in the long run where it gains nothing."""
FIRST = 4.0
MOST = 8.0


class Purse:
    """An account in steps, those without guesses. It begins with a few, grows a little with time, and by what drafts win."""

    def __init__(self) -> None:
        self._held = FIRST

    @property
    def is_empty(self) -> bool:
        """Whether nothing more may be lost."""
        return self._held <= 0

    def settle(self, won: float) -> None:
        """A step is over, by which `won` steps were saved; fewer than none where it took longer than its tokens are worth."""
        self._held = min(MOST, self._held + SHARE + won)
