"""What a match found, held until it is given back: the pages of the longest cached prefix.

Made by `RadixTree.match`; owned by the sequence that was admitted with it.
"""

from types import TracebackType
from typing import Self

from branchpoint.radix.pool import BlockPool

__all__ = ["Handle"]


class Handle:
    """The pages of a matched prefix, each with a reference of this handle's until `release()`.

    `pages` are whole pages in order. `tail` is None or (page, count): the first `count` tokens of that page match too; copy
    them into a page of your own before you write behind them. `num_tokens` is the length of the match, tail included.
    """

    __slots__ = ("_pool", "num_tokens", "pages", "tail")

    def __init__(self, pool: BlockPool, pages: tuple[int, ...], tail: tuple[int, int] | None) -> None:
        self.pages = pages
        self.tail = tail
        self.num_tokens = len(pages) * pool.page_size + (tail[1] if tail else 0)
        self._pool: BlockPool | None = pool
        pool.retain(self._held)

    @property
    def _held(self) -> tuple[int, ...]:
        return (*self.pages, self.tail[0]) if self.tail else self.pages

    @property
    def released(self) -> bool:
        """Whether the pages were given back."""
        return self._pool is None

    def release(self) -> None:
        """Give the pages back; a second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release(self._held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        state = ", released" if self.released else ""
        return f"Handle({self.num_tokens} tokens, pages={list(self.pages)}, tail={self.tail}{state})"
