"""The pages of the KV cache: which are free, and how many hold each of the others.

Sequences, handles and the radix tree share pages by reference counts. The tree's own reference is marked, so that what it
alone keeps, and eviction could therefore free, is a number that is always at hand.
"""

from collections.abc import Collection, Iterable

from branchpoint.errors import BranchpointError

__all__ = ["BlockPool", "OutOfPages"]


class OutOfPages(MemoryError, BranchpointError):
    """More pages were asked for than are free. Nothing was taken; evict or preempt, then ask again."""

    def __init__(self, asked: int, free: int, total: int) -> None:
        super().__init__(f"Asked for {asked} pages, but {free} of {total} are free; evict cached pages or preempt a sequence.")
        self.asked = asked
        self.free = free
        self.total = total


class BlockPool:
    """`num_pages` pages of `page_size` tokens each, numbered from 0. Not safe across threads: its owner is the engine's loop."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        assert num_pages > 0 and page_size > 0, f"a pool needs pages and tokens in them, got {num_pages} of {page_size}"
        self._num_pages = num_pages
        self._page_size = page_size
        self._references = [0] * num_pages
        self._free = bytearray(b"\x01" * num_pages)
        self._num_free = num_pages
        self._lowest = 0  # no page below is free
        self._cached = bytearray(num_pages)
        self._num_cached = 0
        self._num_idle = 0

    @property
    def num_pages(self) -> int:
        """All pages, free or not."""
        return self._num_pages

    @property
    def page_size(self) -> int:
        """Tokens in a page."""
        return self._page_size

    @property
    def num_free(self) -> int:
        """Pages that no one references."""
        return self._num_free

    @property
    def num_cached(self) -> int:
        """Pages that the cache references, alone or beside others."""
        return self._num_cached

    @property
    def num_idle(self) -> int:
        """Pages that the cache alone references."""
        return self._num_idle

    def references(self, page: int) -> int:
        """How many hold `page`; 0 means free."""
        return self._references[page]

    def is_cached(self, page: int) -> bool:
        """Whether one of the references to `page` is the cache's."""
        return bool(self._cached[page])

    def allocate(self, n: int, *, after: int | None = None) -> list[int]:
        """Take `n` free pages, each with one reference: all of them, or OutOfPages and none.

        Consecutive ascending ids where a free run is long enough, else as few ascending runs as a quick search finds. `after`
        names the page that the new ones continue: they follow it directly where that run is free.
        """
        assert n >= 0, f"can't allocate {n} pages"
        if n > self._num_free:
            raise OutOfPages(n, self._num_free, self._num_pages)
        if n == 0:
            return []
        pages: list[int] = []
        if after is not None and self._free.startswith(b"\x01" * n, after + 1):
            self._take(after + 1, n, pages)
            return pages
        run, start = n, self._lowest
        while len(pages) < n:
            run = min(run, n - len(pages))
            at = self._free.find(b"\x01" * run, start)
            if at >= 0:
                self._take(at, run, pages)
                start = at + run
            else:
                run, start = (run + 1) // 2 if run > 1 else 1, self._lowest
        pages.sort()
        return pages

    def _take(self, start: int, count: int, pages: list[int]) -> None:
        stop = start + count
        self._free[start:stop] = bytes(count)
        self._references[start:stop] = [1] * count
        self._num_free -= count
        pages.extend(range(start, stop))
        if start == self._lowest:
            following = self._free.find(b"\x01", stop)
            self._lowest = following if following >= 0 else self._num_pages

    def retain(self, pages: Iterable[int]) -> None:
        """Add one reference to each of `pages`, which must not be free."""
        references, cached = self._references, self._cached
        for page in pages:
            count = references[page]
            assert count > 0, f"page {page} is free: only who holds a page can share it"
            if count == 1 and cached[page]:
                self._num_idle -= 1
            references[page] = count + 1

    def release(self, pages: Iterable[int]) -> None:
        """Give back one reference to each of `pages`; the last one frees the page."""
        references, cached = self._references, self._cached
        for page in pages:
            count = references[page] - 1
            assert count >= cached[page], f"page {page} was released more often than it was taken"
            references[page] = count
            if count == 0:
                self._free[page] = 1
                self._num_free += 1
                if page < self._lowest:
                    self._lowest = page
            elif count == 1 and cached[page]:
                self._num_idle += 1

    def cache(self, pages: Iterable[int]) -> None:
        """Take the cache's own reference to each of `pages`, which the caller holds and the cache doesn't yet."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and can't be cached"
            assert not self._cached[page], f"page {page} is cached under other tokens: a page was written twice"
            self._references[page] += 1
            self._cached[page] = 1
            self._num_cached += 1

    def uncache(self, pages: Collection[int]) -> int:
        """Give back the cache's reference to each of `pages`; returns how many that freed."""
        before = self._num_free
        for page in pages:
            assert self._cached[page], f"page {page} isn't cached"
            self._cached[page] = 0
            self._num_cached -= 1
            if self._references[page] == 1:
                self._num_idle -= 1
        self.release(pages)
        return self._num_free - before

    def check(self) -> None:
        """Count everything again. Raises AssertionError where a counter is wrong."""
        counts = self._references
        free = [page for page, count in enumerate(counts) if count == 0]
        assert all(count >= 0 for count in counts), "a page has fewer than no references"
        assert free == [page for page in range(self._num_pages) if self._free[page]], "free map and counts differ"
        assert len(free) == self._num_free, f"{len(free)} pages are free, {self._num_free} are counted"
        assert not free or self._lowest <= free[0], f"page {free[0]} is free below {self._lowest}"
        assert sum(self._cached) == self._num_cached, f"{sum(self._cached)} pages are cached, {self._num_cached} are counted"
        idle = sum(1 for page, count in enumerate(counts) if count == 1 and self._cached[page])
        assert idle == self._num_idle, f"{idle} cached pages are idle, {self._num_idle} are counted"
        assert not any(self._cached[page] for page in free), "a free page is marked as cached"
