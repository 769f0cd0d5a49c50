"""The radix tree beside a plain dictionary of whole pages, in a cache of a million tokens: `python -m benchmarks.radix`.

Cases: `match_8192` (find and hold a cached prefix of 8,192 tokens, from a list of ids), `evict_1000` (free 1,000 pages), and both
again `hinted`: with pins and announced returns on every prompt, and a host tier that takes what is evicted. The peer is what a
cache needs at least: a hash chain of whole pages in an ordered dictionary, exact to the page only.
"""

import argparse
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from statistics import median

from benchmarks.report import Figure, Report
from branchpoint.radix import BlockPool, HostTier, PrefixKey, RadixTree

__all__ = ["main"]

PAGE = 16
LENGTH = 8192
SHARED = 6000
BRANCHES = 4
PEER = "hash chain of whole pages"


class PageChain:
    """The peer: each whole page under the hash of its tokens and of the page before it, the least recently used first."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.pages: OrderedDict[int, int] = OrderedDict()

    def hashes(self, tokens: list[int]) -> list[int]:
        chain, last = [], 0
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            last = hash((last, *tokens[start : start + PAGE]))
            chain.append(last)
        return chain

    def match(self, tokens: list[int]) -> list[int]:
        found: list[int] = []
        last = 0
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            last = hash((last, *tokens[start : start + PAGE]))
            page = self.pages.get(last)
            if page is None:
                break
            self.pages.move_to_end(last)
            found.append(page)
        self.pool.retain(found)
        return found

    def insert(self, tokens: list[int]) -> None:
        for name in self.hashes(tokens):
            if name not in self.pages:
                self.pages[name] = self.pool.allocate(1)[0]

    def evict(self, count: int) -> None:
        self.pool.release([self.pages.popitem(last=False)[1] for _ in range(count)])


def prompts(total: int) -> list[list[int]]:
    """Prompts of LENGTH tokens, BRANCHES on each shared prefix, with `total` different tokens among them."""
    rng = random.Random(0)
    made: list[list[int]] = []
    for _ in range(-(-total // (SHARED + BRANCHES * (LENGTH - SHARED)))):
        shared = [rng.randrange(1000, 48000) for _ in range(SHARED)]
        made += [shared + [rng.randrange(1000, 48000) for _ in range(LENGTH - SHARED)] for _ in range(BRANCHES)]
    return made


def fill(tree: RadixTree, pool: BlockPool, work: list[list[int]]) -> None:
    for tokens in work:
        key = PrefixKey("", tokens)
        with tree.match(key) as handle:
            own = pool.allocate(-(-len(tokens) // PAGE) - len(handle.pages))
            tree.insert(key, [*handle.pages, *own])
            pool.release(own)


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def hint(tree: RadixTree, work: list[list[int]]) -> None:
    """A return is announced for every prompt; every other one is pinned, as far as pins go."""
    for number, tokens in enumerate(work):
        tree.expect(PrefixKey("", tokens), number % 10, uses=1000)
        if number % 2:
            tree.pin(PrefixKey("", tokens), 600)


def measure(report: Report, suffix: str, tree: RadixTree, chain: PageChain, work: list[list[int]]) -> None:
    """Tree and chain in turn."""
    ours, peer = [], []
    for tokens in (work * 3)[:201]:
        ours.append(seconds(lambda tokens=tokens: tree.match(PrefixKey("", tokens)).release()))  # type: ignore[misc]  # bound early
        peer.append(seconds(lambda tokens=tokens: chain.pool.release(chain.match(tokens))))  # type: ignore[misc]  # bound early
    figures = ("us", median(ours) * 1e6, PEER, median(peer) * 1e6)
    report.add(Figure("radix", f"match_{LENGTH}{suffix}", *figures, lower_is_better=True))
    rounds = min(15, tree.num_evictable // 1000)
    ours = [seconds(lambda: tree.evict(1000)) for _ in range(rounds)]
    peer = [seconds(lambda: chain.evict(1000)) for _ in range(rounds)]
    figures = ("us", median(ours) * 1e6, PEER, median(peer) * 1e6)
    report.add(Figure("radix", f"evict_1000{suffix}", *figures, lower_is_better=True))


def main() -> None:
    """Build the caches, measure them in turn, print every figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.radix", description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="size of the cache")
    parser.add_argument("--json", action="store_true", help="leave out the table")
    options = parser.parse_args()
    report = Report(json_only=options.json)
    work = prompts(options.tokens)
    pages = options.tokens // PAGE * 3 // 2
    for suffix, host in (("", None), ("_hinted", HostTier(pages, PAGE))):
        pool = BlockPool(pages, PAGE)
        tree, chain = RadixTree(pool, host=host), PageChain(BlockPool(pages, PAGE))
        fill(tree, pool, work)
        for tokens in work:
            chain.insert(tokens)
        if host:
            hint(tree, work)
        measure(report, suffix, tree, chain, work)
    report.close()


if __name__ == "__main__":
    main()
