"""What a match found, held until it is given back: the pages of the longest cached prefix, and what host memory has behind them.

Made by `RadixTree.match`; owned by the sequence that was admitted with it.
"""

from types import TracebackType
from typing import Self

from branchpoint.radix.node import Node
from branchpoint.radix.pool import BlockPool

__all__ = ["Handle", "HostStretch"]


class HostStretch:
    """The part of a match that only host memory holds, from the page behind the handle's whole pages on.

    `slots` are whole pages in order. `tail` is None or (slot, count): the first `count` tokens of that slot match too. `end`
    is the length of the match in both tiers.
    """

    __slots__ = ("_pool", "end", "slots", "tail")

    def __init__(self, pool: BlockPool | None, slots: tuple[int, ...], tail: tuple[int, int] | None, end: int) -> None:
        self.slots = slots
        self.tail = tail
        self.end = end
        self._pool = pool
        if pool is not None:
            pool.retain(self.held)

    @property
    def held(self) -> tuple[int, ...]:
        """All slots, the tail's too: one for each page that `RadixTree.restore` may fill."""
        return (*self.slots, self.tail[0]) if self.tail else self.slots

    def release(self) -> None:
        """Give the slots back; a second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release(self.held)


class Handle:
    """The pages of a matched prefix, each with a reference of this handle's until `release()`.

    `pages` are whole pages in order. `tail` is None or (page, count): the first `count` tokens of that page match too; copy
    them into a page of your own before you write behind them. `num_tokens` is the length of the match on the device, tail
    included. `host` goes on where `pages` end; its slots are held as long. `path` is the tree's own note of what the match
    ran through.
    """

    __slots__ = ("_pool", "host", "num_tokens", "pages", "path", "tail")

    def __init__(
        self,
        pool: BlockPool,
        pages: tuple[int, ...],
        tail: tuple[int, int] | None,
        host: HostStretch | None = None,
        path: tuple[Node, ...] = (),
    ) -> None:
        self.pages = pages
        self.tail = tail
        self.num_tokens = len(pages) * pool.page_size + (tail[1] if tail else 0)
        self.host = host or HostStretch(None, (), None, self.num_tokens)
        self.path = path
        self._pool: BlockPool | None = pool
        pool.retain(self.held)

    @property
    def held(self) -> tuple[int, ...]:
        """The pages that have a reference of this handle's, until it is released."""
        return (*self.pages, self.tail[0]) if self.tail else self.pages

    @property
    def released(self) -> bool:
        """Whether the pages were given back."""
        return self._pool is None

    def release(self) -> None:
        """Give pages and host slots back; a second call does nothing."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release(self.held)
            self.host.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __repr__(self) -> str:
        host = f", {self.host.end} with host" if self.host.held else ""
        state = ", released" if self.released else ""
        return f"Handle({self.num_tokens} tokens{host}, pages={list(self.pages)}, tail={self.tail}{state})"
