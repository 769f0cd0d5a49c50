"""Plain text from a fixed seed, for prompts: no two stretches alike, some five tokens for four words."""

import random

__all__ = ["Writer"]

WORDS = """
river stone garden window paper engine market winter yellow silver quiet narrow distant careful bright heavy simple broken carry
follow measure answer borrow gather travel listen wonder settle under across before without between behind against doctor farmer
teacher sailor neighbour children evening morning journey letter question bridge mountain village kitchen
"""


class Writer:
    """Writes sentences; the same seed writes the same ones."""

    def __init__(self, *seed: object) -> None:
        self._random = random.Random("/".join(map(str, seed)))
        self._words = WORDS.split()

    def words(self, count: int) -> str:
        """`count` words."""
        return " ".join(self._random.choices(self._words, k=count))

    def sentence(self, count: int) -> str:
        """A sentence of `count` words."""
        return self.words(count).capitalize() + "."

    def pick(self, options: list[str]) -> str:
        """One of `options`."""
        return self._random.choice(options)
