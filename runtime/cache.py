"""Joins page pool and radix tree for sequences: who has which pages, and what of a prompt needs no computing.

Stands between the scheduler, which decides who runs, and `radix/`, which knows no sequences. All pages of a sequence are
referenced once for it, whether it computed them, found them in the tree or has them brought back from host memory.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from itertools import chain

from branchpoint.radix import (
    BlockPool,
    CopyCost,
    DumpOptions,
    Handle,
    HostTier,
    PrefixKey,
    RadixTree,
    Swap,
    check_balance,
    find_lost_reuse,
)
from branchpoint.radix.key import common_prefix
from branchpoint.runtime.plan import Copy, PageCopy, TokenMove
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.stats import CacheDump

__all__ = ["KVCache"]

SHOWN_TOKENS = 64  # of each node in a dump
RECENT = 128  # prefixes in which lost reuse is looked for


class KVCache:
    """The KV pages of `num_pages` x `page_size` tokens. With `enabled` false nothing is matched and nothing kept.

    With `host` evicted pages move there, and come back for a sequence where that is faster than computing by `copy_cost`.
    `clock` gives seconds and orders eviction.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        enabled: bool = True,
        host: HostTier | None = None,
        copy_cost: CopyCost | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert (host is None) == (copy_cost is None), "a host tier needs to know what a copy costs"
        self.pool = BlockPool(num_pages, page_size)
        self.tree = RadixTree(self.pool, clock, host=host)
        self.enabled = enabled
        self._host = host
        self._copy_cost = copy_cost
        self._keys: dict[Sequence, PrefixKey] = {}
        self._copies: list[Copy] = []
        self._sources: dict[int, Handle] = {}  # what is held for the copies to come, by the pages that are copied to
        self._copied: deque[Iterable[Handle]] = deque()  # and for those of each plan under way, the oldest first

    @property
    def num_available(self) -> int:
        """Pages that can be had without taking any from a sequence: free ones, and what the tree alone holds."""
        return self.pool.num_free + self.tree.num_evictable

    @property
    def capacity(self) -> int:
        """Tokens that all pages together hold."""
        return self.pool.num_pages * self.pool.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.pool.page_size)

    def missing(self, sequence: Sequence) -> int:
        """Pages that `sequence` is about to need: for all its tokens, and for a page of output to come."""
        soon = min(sequence.num_tokens + self.pool.page_size, sequence.num_prompt + sequence.max_output)
        return max(0, self.pages_for(soon) - len(sequence.pages))

    def cached_tokens(self, sequence: Sequence) -> int:
        """How much of `sequence` the tree holds in both tiers, up to the first row that is wanted. Counts as no use."""
        return self.tree.peek(self._key(sequence), self._limit(sequence), host=True) if self.enabled else 0

    def read_ahead(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Up to `count` tokens that the tree holds behind all tokens of `sequence`. Counts as no use."""
        return self.tree.continuation(self._key(sequence), count) if self.enabled else ()

    def read_forks(self, sequence: Sequence, count: int, width: int, reach: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Behind how many of these tokens the tree holds others too: up to `reach` tokens of each of `width` other branches."""
        return self.tree.forks(self._key(sequence), count, width, reach) if self.enabled else ()

    def shared_prefix(self, sequence: Sequence, other: Sequence) -> int:
        """Tokens that `sequence` could take over once `other` has computed all of its own."""
        if not self.enabled or sequence.space != other.space:
            return 0
        common = common_prefix(self._key(sequence).packed, self._key(other).packed)
        return min(common, self._limit(sequence), other.target)

    def admit(self, sequence: Sequence, reserved: int) -> bool:
        """Give `sequence` the pages of its cached prefix; what must be copied for that is copied by the next plan.

        False, and nothing taken, where the pages for the rest can't be had beside `reserved` ones that others need.
        """
        key, limit = self._key(sequence), self._limit(sequence) if self.enabled else 0
        handle = self.tree.match(key, limit, use=False)
        if handle.tail and not self._fits(sequence, handle, reserved):
            handle.release()  # the page to copy from is itself in the way: do without the copy
            handle = self.tree.match(key, len(handle.pages) * self.pool.page_size, use=False)
        if not self._fits(sequence, handle, reserved):
            handle.release()
            return False
        self.tree.use(handle)
        self.pool.retain(handle.pages)
        sequence.pages = list(handle.pages)
        sequence.num_computed = len(handle.pages) * self.pool.page_size
        if self._restore(sequence, key, handle) or handle.tail is None:
            handle.release()
        else:
            self._copy_tail(sequence, handle, handle.tail)
        return True

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """See that `sequence` has pages for its first `num_tokens` tokens. False, and nothing taken, where they can't be had."""
        needed = self.pages_for(num_tokens) - len(sequence.pages)
        if needed <= 0:
            return True
        pages = self._allocate(needed, sequence.pages)
        if pages is None:
            return False
        sequence.pages += pages
        return True

    def close_up(self, sequence: Sequence, begin: int, taken: Many[int]) -> None:
        """Of what was computed where the tokens from position `begin` on lie, those that far behind it are the sequence's own:
        have the next plan copy their KV to where it belongs.
        """
        size, pages = self.pool.page_size, sequence.pages
        moved = [(begin + lies, begin + place) for place, lies in enumerate(taken) if lies != place]
        if moved:
            sources, targets = ((pages[at // size] * size + at % size for at in ats) for ats in zip(*moved, strict=True))
            self._plan_swaps()
            self._copies.append(TokenMove(tuple(sources), tuple(targets)))

    def shrink(self, sequence: Sequence, ahead: int = 0) -> None:
        """Take back the pages behind the last token of `sequence`, and behind as many tokens as a step is computing `ahead`: they
        were for guesses that came to nothing.
        """
        kept = self.pages_for(max(sequence.num_tokens, ahead))
        if kept < len(sequence.pages):
            self.pool.release(sequence.pages[kept:])
            del sequence.pages[kept:]

    def take_copies(self) -> tuple[Copy, ...]:
        """The copies that the next plan must make before its forward pass, in their order; it is under way until `settle`."""
        self._plan_swaps()
        copies, self._copies = tuple(self._copies), []
        self._copied.append(self._sources.values())
        self._sources = {}
        return copies

    def settle(self, copies: Iterable[Copy], *, made: bool = True) -> None:
        """The oldest plan under way, which has these copies, has run, or (`made` false) has failed: what they read from is no
        longer needed.
        """
        for handle in self._copied.popleft():
            handle.release()
        self.tree.settle((copy for copy in copies if isinstance(copy, Swap)), made=made)

    def publish(self, sequence: Sequence) -> PrefixKey | None:
        """Let others find what `sequence` has computed so far; it keeps its pages and may write on behind that.

        Returns the key under which that is found; None where nothing is.
        """
        if not self.enabled or not sequence.num_computed:
            return None
        key = PrefixKey(sequence.space, sequence.tokens[: sequence.num_computed])
        pages = sequence.pages[: self.pages_for(sequence.num_computed)]
        self.tree.insert(key, pages, priority=sequence.hints.priority)
        return key

    def release(self, sequence: Sequence, *, keep: bool) -> PrefixKey | None:
        """Take all pages from `sequence`; with `keep` its computed tokens stay in the tree while there is room, under this key.

        One that was admitted into the plan in the making has computed nothing yet: a page of it may still wait for its copy.
        """
        waits = {copy.target for copy in self._copies if isinstance(copy, PageCopy)}.intersection(sequence.pages)
        self._copies = [copy for copy in self._copies if not isinstance(copy, PageCopy) or copy.target not in waits]
        for page in waits:
            self._sources.pop(page).release()
        key = self.publish(sequence) if keep and not waits else None
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0
        return key

    def forget(self, sequence: Sequence) -> None:
        """`sequence` will not be asked about again."""
        self._keys.pop(sequence, None)

    def flush(self) -> int:
        """Empty the tree; sequences keep their pages. Returns the number of pages freed."""
        return self.tree.flush()

    def page_counts(self) -> dict[str, int]:
        """The pages as `EngineStats` counts them: free ones, those that the tree alone has, and the others."""
        free, idle = self.pool.num_free, self.pool.num_idle
        return {"pages_free": free, "pages_cached": idle, "pages_held": self.pool.num_pages - free - idle}

    def dump(self) -> CacheDump:
        """The tree as data, and why its prefixes of late don't share more."""
        return CacheDump(self.tree.dump(DumpOptions(max_tokens=SHOWN_TOKENS)), tuple(find_lost_reuse(self.tree.recent(RECENT))))

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Hold pool, tree and the pages of `sequences` (all that have any) against each other. Raises AssertionError."""
        sequences = list(sequences)
        waits = {copy.target for copy in self._copies if isinstance(copy, PageCopy)}
        assert self._sources.keys() == waits, "what is to be copied isn't held, or is held for no copy"
        self.pool.check()
        self.tree.check()
        handles = [*self._sources.values(), *chain.from_iterable(self._copied)]
        check_balance(self.pool, chain.from_iterable([*(each.pages for each in sequences), *(each.held for each in handles)]))
        if self._host is not None:
            self._host.pool.check()
            check_balance(self._host.pool, chain(self._host.held, *(each.host.held for each in handles)))
        for sequence in sequences:
            assert sequence.num_computed <= len(sequence.pages) * self.pool.page_size, "computed tokens without a page"
            assert len(set(sequence.pages)) == len(sequence.pages), "a sequence has a page twice"

    def _limit(self, sequence: Sequence) -> int:
        return min(sequence.next_row, sequence.target - 1)

    def _fits(self, sequence: Sequence, handle: Handle, reserved: int) -> bool:
        return self.pages_for(sequence.final_length) - len(handle.pages) + reserved <= self.num_available

    def _restore(self, sequence: Sequence, key: PrefixKey, handle: Handle) -> bool:
        """Have what only host memory holds of `key` brought back behind the pages that `sequence` has, where that pays."""
        held, gained = len(handle.host.held), handle.host.end - handle.num_tokens
        if self._copy_cost is None or not self._copy_cost.is_worth(held, gained):
            return False
        pages = self._allocate(held, sequence.pages)
        assert pages is not None, "pages that were there are gone"
        sequence.num_computed = self.tree.restore(key, handle, pages)
        sequence.pages += pages
        return True

    def _copy_tail(self, sequence: Sequence, handle: Handle, tail: tuple[int, int]) -> None:
        """Have the page that `handle` matches in part copied; `handle` holds it until that is done."""
        page = self._allocate(1, sequence.pages)
        assert page is not None, "a page that was there is gone"
        self._plan_swaps()
        self._copies.append(PageCopy(tail[0], page[0], tail[1]))
        self._sources[page[0]] = handle
        sequence.pages += page
        sequence.num_computed = handle.num_tokens

    def _plan_swaps(self) -> None:
        """Put the swaps that the tree has planned so far before the copies to come."""
        self._copies += self.tree.take_swaps()

    def _key(self, sequence: Sequence) -> PrefixKey:
        key = self._keys.get(sequence)
        if key is None or len(key) != sequence.num_tokens:
            key = self._keys[sequence] = PrefixKey(sequence.space, sequence.tokens)
        return key

    def _allocate(self, count: int, behind: list[int]) -> list[int] | None:
        short = count - self.pool.num_free
        if short > 0:
            if short > self.tree.num_evictable:
                return None
            self.tree.evict(short)
        return self.pool.allocate(count, after=behind[-1] if behind else None)
