"""How long nobody is asked for guesses where those that came didn't pay: twice as long each time, until the batch is emptier."""

from dataclasses import dataclass

__all__ = ["Pause"]

LONGEST = 64


@dataclass(slots=True)
class Pause:
    """For how many more steps nobody is asked, how long the pause before that was, and how many sequences drew then."""

    left: int = 0
    length: int = 0
    rows: int = 0

    def skips(self, rows: int) -> bool:
        """Whether this step is left out. An emptier batch is another question."""
        if rows < 0.75 * self.rows:
            self.left = self.length = 0
        self.left -= 1
        return self.left >= 0

    def extend(self, rows: int) -> None:
        """What was offered didn't pay."""
        self.length = min(LONGEST, 2 * self.length + 1)
        self.left, self.rows = self.length, rows
