"""Random operations on pool, tree and host tier, held against a naive model: token lists, and memories of what was written.

As in the engine, copies are planned by any operation and made in order before the next step writes, or never where a step fails.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from branchpoint.radix import BlockPool, Handle, HostTier, OutOfPages, PrefixKey, RadixTree, Swap, check_balance
from branchpoint.radix.key import common_prefix

NUM_PAGES = 24
namespaces = st.sampled_from(["", "", "", "a"])
draws = st.integers(0, 2**32).map(random.Random)  # what a rule draws for itself: cheap, and evenly spread


@dataclass
class Running:
    """A sequence as the engine would keep it: its tokens that have KV, those to come, and pages with a reference each."""

    namespace: str
    tokens: list[int]
    pages: list[int]
    todo: list[int] = field(default_factory=list)


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return common_prefix(PrefixKey("", left).packed, PrefixKey("", right).packed)


class PoolAndTree(RuleBasedStateMachine):
    events: Counter[str]  # what the runs of one test came across

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @initialize(size=st.sampled_from([1, 3, 16, 64]), slots=st.sampled_from([0, 5, 40]))
    def start(self, size: int, slots: int) -> None:
        self.size = size
        self.pool = BlockPool(NUM_PAGES, size)
        self.host = HostTier(slots, size) if slots else None
        self.tree = RadixTree(self.pool, clock=self.clock, host=self.host)
        self.memory: list[list[int]] = [[] for _ in range(NUM_PAGES)]
        self.slots: list[list[int]] = [[] for _ in range(slots)]
        self.copies: list[Swap | tuple[int, int, int]] = []
        self.sources: list[Handle] = []
        self.running: list[Running] = []
        self.handles: list[Handle] = []
        self.cached: set[tuple[str, tuple[int, ...]]] = set()
        self.seen: list[list[int]] = [[]]

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def any_running(self, draw: random.Random) -> Running:
        return draw.choice(self.running)

    def suffix(self, draw: random.Random) -> list[int]:
        """Up to about two and a half pages, of few enough tokens that prefixes meet."""
        return draw.choices([0, 0, 1, 1, 2, 3], k=draw.randrange(3 + self.size * 5 // 2))

    def prompt(self, draw: random.Random) -> list[int]:
        """What is cached, was seen or runs, cut somewhere and continued in another way."""
        base = draw.choice(
            self.seen[-6:] + [running.tokens for running in self.running] + [list(path) for _, path in sorted(self.cached)]
        )
        cut = draw.choice([len(base), draw.randint(0, len(base))])
        tokens = base[:cut] + draw.choice([[], self.suffix(draw)])
        self.seen.append(tokens)
        return tokens

    def expected(self, namespace: str, tokens: list[int]) -> int:
        return max((common(path, tuple(tokens)) for name, path in self.cached if name == namespace), default=0)

    def on_device(self, namespace: str, tokens: list[int]) -> int:
        """As far as pages on the device reach: each node's pages are the next of its path."""
        paths: dict[int | None, tuple[int, ...]] = {None: ()}
        found = 0
        for node in self.tree.dump()["nodes"]:
            path = paths[node["id"]] = (*paths[node["parent"]], *node["tokens"])
            covered = path[: (node["start"] // self.size + len(node["pages"])) * self.size] if node["pages"] else ()
            if node["namespace"] == namespace:
                found = max(found, common(covered, tuple(tokens)))
        return found

    def matched(self, namespace: str, tokens: list[int], limit: int | None, *, use: bool = True) -> Handle:
        key = PrefixKey(namespace, tokens)
        handle = self.tree.match(key, limit, use=use)
        bound = len(tokens) if limit is None else limit
        assert handle.host.end == min(bound, self.expected(namespace, tokens)) == self.tree.peek(key, limit, host=True)
        assert handle.num_tokens == min(bound, self.on_device(namespace, tokens)) == self.tree.peek(key, limit)
        if handle.host.held:
            self.events["found more in host memory"] += 1
            tail = handle.host.tail[1] if handle.host.tail else 0
            assert (len(handle.pages) + len(handle.host.slots)) * self.size + tail == handle.host.end
        if not self.copies and not self.tree_has_copies:
            self.holds(tokens, handle)
        return handle

    @property
    def tree_has_copies(self) -> bool:
        return self.host is not None and self.host.has_unsettled

    def holds(self, tokens: list[int], handle: Handle) -> None:
        """Pages, slots and tails have the tokens that they were found for."""
        found = [token for page in handle.pages for token in self.memory[page][: self.size]]
        beyond = found + [token for slot in handle.host.slots for token in self.slots[slot][: self.size]]
        if handle.tail:
            assert 0 < handle.tail[1] < self.size
            self.events["copied a partial page"] += 1
            found += self.memory[handle.tail[0]][: handle.tail[1]]
        assert found == tokens[: handle.num_tokens]
        if handle.host.tail:
            assert 0 < handle.host.tail[1] < self.size
            beyond += self.slots[handle.host.tail[0]][: handle.host.tail[1]]
        if handle.host.held:
            assert beyond == tokens[: handle.host.end]

    def take(self, n: int) -> list[int] | None:
        """Allocate as the scheduler does: evict what is missing; with too little to evict, fail and leave all as it was."""
        missing = n - self.pool.num_free
        if missing > 0:
            if missing > self.tree.num_evictable:
                free = self.pool.num_free
                with pytest.raises(OutOfPages):
                    self.pool.allocate(n)
                assert self.pool.num_free == free
                self.events["out of pages"] += 1
                return None
            self.evict(missing)
        pages = self.pool.allocate(n)
        assert pages == sorted(set(pages))
        assert all(self.pool.references(page) == 1 for page in pages)
        return pages

    @rule(namespace=namespaces, draw=draws)
    def call(self, namespace: str, draw: random.Random) -> None:
        """A whole call: fills the cache quickly."""
        self.admit(namespace, draw)
        self.step()
        if self.running:
            self.finish(draw)

    @precondition(lambda self: len(self.running) < 4)
    @rule(namespace=namespaces, draw=draws)
    def admit(self, namespace: str, draw: random.Random) -> None:
        """Take over what is cached, bring back what host memory has, copy a page that matches in part, compute the rest later."""
        tokens = self.prompt(draw)
        key = PrefixKey(namespace, tokens)
        handle = self.matched(namespace, tokens, max(len(tokens) - 1, 0), use=False)
        held = len(handle.host.held) if draw.random() < 0.7 else 0
        own = self.take(-(-len(tokens) // self.size) - len(handle.pages))
        if own is None:
            handle.release()
            return
        self.tree.use(handle)
        self.pool.retain(handle.pages)
        length = handle.num_tokens
        if held:
            restored = draw.choice([held, draw.randint(1, held)])
            length = self.tree.restore(key, handle, own[:restored])
            assert length > handle.num_tokens or restored < held
            self.events["restored"] += 1
            whole = length // self.size * self.size
            self.cached.add((namespace, tuple(tokens[:whole])))
            assert self.tree.peek(key) >= whole
        elif handle.tail:
            self.copies += self.tree.take_swaps()
            self.copies.append((handle.tail[0], own[0], handle.tail[1]))
        self.sources.append(handle)
        self.running.append(Running(namespace, tokens[:length], [*handle.pages, *own], tokens[length:]))

    @precondition(lambda self: self.running)
    @rule(draw=draws)
    def grow(self, draw: random.Random) -> None:
        sequence, suffix = self.any_running(draw), self.suffix(draw)
        total = len(sequence.tokens) + len(sequence.todo) + len(suffix)
        own = self.take(-(-total // self.size) - len(sequence.pages))
        if own is not None:
            sequence.pages += own
            sequence.todo += suffix

    @rule()
    def step(self) -> None:
        """Make the copies, then write what is to be computed, each sequence behind its own tokens."""
        self.copies += self.tree.take_swaps()
        for copy in self.copies:
            if isinstance(copy, Swap):
                self.swap(copy)
            else:
                source, target, count = copy
                self.memory[target] = self.memory[source][:count]
        for sequence in self.running:
            for token in sequence.todo:
                page, at = sequence.pages[len(sequence.tokens) // self.size], len(sequence.tokens) % self.size
                assert at <= len(self.memory[page]) or at == 0, "written behind a hole"
                self.memory[page][at:] = [token]
                sequence.tokens.append(token)
            sequence.todo = []
        self.settle(made=True)
        for sequence in self.running:
            held = [token for page in sequence.pages for token in self.memory[page][: self.size]]
            assert held[: len(sequence.tokens)] == sequence.tokens
        for namespace, path in self.cached:
            with self.tree.match(PrefixKey(namespace, path), use=False) as handle:
                self.holds(list(path), handle)

    def swap(self, swap: Swap) -> None:
        """All at once: what is read is what lay there before."""
        assert len({page for page, _ in swap.pairs}) == len(swap.pairs)
        assert not swap.to_host or len({slot for _, slot in swap.pairs}) == len(swap.pairs)
        self.events["moved to host memory" if swap.to_host else "moved back"] += 1
        for (page, slot), memory in zip(swap.pairs, [list(self.memory[page]) for page, _ in swap.pairs], strict=True):
            if swap.to_host:
                self.slots[slot] = memory
            else:
                self.memory[page] = list(self.slots[slot])

    def settle(self, *, made: bool) -> None:
        swaps = [copy for copy in self.copies if isinstance(copy, Swap)]
        self.tree.settle(swaps, made=made)
        for handle in self.sources:
            handle.release()
        self.copies, self.sources = [], []

    @precondition(lambda self: self.copies or self.tree_has_copies)
    @rule(draw=draws)
    def step_fails(self, draw: random.Random) -> None:
        """A fault of the device: nothing was copied, and the engine ends all sequences without keeping anything."""
        if draw.random() < 0.7:
            return
        self.copies += self.tree.take_swaps()
        swapped = any(isinstance(copy, Swap) for copy in self.copies)
        for sequence in self.running:
            self.pool.release(sequence.pages)
        self.running = []
        self.settle(made=False)
        if swapped:
            self.events["forgot all after a fault"] += 1
            assert self.tree.num_tokens == 0
            for handle in self.handles:
                handle.release()
            self.handles = []
        self.shrink_to(self.paths())

    @precondition(lambda self: self.running)
    @rule(draw=draws)
    def insert(self, draw: random.Random) -> None:
        sequence = self.any_running(draw)
        count = draw.choice([len(sequence.tokens), draw.randint(0, len(sequence.tokens))])
        if self.waits(sequence):
            return  # nobody may find what is still to be copied
        self.insert_first(sequence, count, draw.choice([0, 0, 0, 1, 2, -1]))

    def waits(self, sequence: Running) -> bool:
        """Whether a page of `sequence` has still to be copied within the device."""
        return any(not isinstance(copy, Swap) and copy[1] in sequence.pages for copy in self.copies)

    def insert_first(self, sequence: Running, count: int, priority: int) -> None:
        tokens = tuple(sequence.tokens[:count])
        key = PrefixKey(sequence.namespace, tokens)
        pages = sequence.pages[: -(-len(tokens) // self.size)]
        new = self.tree.insert(key, pages, priority=priority)
        assert new == len(tokens) - self.expected(sequence.namespace, list(tokens))
        self.events["cached nothing new" if tokens and not new else "cached"] += 1
        self.cached.add((sequence.namespace, tokens))
        assert self.tree.peek(key, host=True) == len(tokens)
        assert self.tree.peek(key) >= (len(tokens) if self.host is None else len(tokens) // self.size * self.size)

    @precondition(lambda self: self.running)
    @rule(draw=draws)
    def finish(self, draw: random.Random) -> None:
        """A sequence ends, or is aborted between two steps."""
        sequence = self.any_running(draw)
        if draw.random() < 0.8 and not self.waits(sequence):
            self.insert_first(sequence, len(sequence.tokens), 0)
        self.copies = [copy for copy in self.copies if isinstance(copy, Swap) or copy[1] not in sequence.pages]
        self.pool.release(sequence.pages)
        self.running = [other for other in self.running if other is not sequence]

    @precondition(lambda self: len(self.handles) < 3)
    @rule(namespace=namespaces, draw=draws)
    def hold(self, namespace: str, draw: random.Random) -> None:
        limit = draw.choice([None, draw.randint(0, 60)])
        self.handles.append(self.matched(namespace, self.prompt(draw), limit))

    @precondition(lambda self: self.handles)
    @rule(draw=draws)
    def let_go(self, draw: random.Random) -> None:
        handle = self.handles.pop(draw.randrange(len(self.handles)))
        handle.release()
        handle.release()

    @precondition(lambda self: self.cached)
    @rule(namespace=namespaces, draw=draws)
    def hint(self, namespace: str, draw: random.Random) -> None:
        kind, seconds = draw.choice(["pin", "expect", "last"]), draw.choice([0.0, 3.0, 200.0])
        tokens = self.prompt(draw)
        key = PrefixKey(namespace, tokens)
        if kind == "pin":
            covered = self.tree.pin(key, seconds, priority=draw.randint(1, 3))
        elif kind == "expect":
            covered = self.tree.expect(key, seconds, uses=draw.randint(0, 3))
        else:
            covered = self.tree.last_use(key)
        self.events["hinted" if covered else "nothing to hint at"] += 1
        assert covered <= self.expected(namespace, tokens) == self.tree.peek(key, host=True)

    @precondition(lambda self: self.pool.num_cached)
    @rule(n=st.integers(1, 6))
    def evict(self, n: int) -> None:
        free, evictable = self.pool.num_free, self.tree.num_evictable
        freed = self.tree.evict(n)
        assert freed == self.pool.num_free - free == min(n, evictable)
        self.events["evicted" if freed else "found nothing to evict"] += 1
        self.shrink_to(self.paths())

    @precondition(lambda self: len(self.cached) > 4)
    @rule(draw=draws)
    def flush(self, draw: random.Random) -> None:
        if draw.random() < 0.2:
            free, evictable = self.pool.num_free, self.tree.num_evictable
            assert self.tree.flush() == self.pool.num_free - free == evictable
            assert self.tree.num_pages == self.tree.num_tokens == self.tree.num_host_pages == 0
            self.shrink_to(set())

    def paths(self) -> set[tuple[str, tuple[int, ...]]]:
        paths: dict[int | None, tuple[int, ...]] = {None: ()}
        nodes = self.tree.dump()["nodes"]
        for node in nodes:
            paths[node["id"]] = (*paths[node["parent"]], *node["tokens"])
        inner = {node["parent"] for node in nodes}
        return {(node["namespace"], paths[node["id"]]) for node in nodes if node["id"] not in inner}

    def shrink_to(self, paths: set[tuple[str, tuple[int, ...]]]) -> None:
        """What is cached after something was dropped must have been cached before."""
        for namespace, path in paths:
            assert any(name == namespace and old[: len(path)] == path for name, old in self.cached)
        self.cached = paths

    @invariant()
    def balances(self) -> None:
        self.pool.check()
        self.tree.check()
        held = [page for sequence in self.running for page in sequence.pages]
        for handle in (*self.handles, *self.sources):
            held += handle.pages
            if handle.tail:
                held.append(handle.tail[0])
        check_balance(self.pool, held)
        if self.host:
            self.host.pool.check()
            slots = [slot for handle in (*self.handles, *self.sources) for slot in handle.host.held]
            check_balance(self.host.pool, slots + self.host.held)


def run(max_examples: int, steps: int) -> Counter[str]:
    class Machine(PoolAndTree):
        pass

    Machine.events = Counter()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Machine.events


EVENTS = {
    "cached",
    "cached nothing new",
    "copied a partial page",
    "evicted",
    "forgot all after a fault",
    "found more in host memory",
    "found nothing to evict",
    "hinted",
    "moved back",
    "moved to host memory",
    "nothing to hint at",
    "out of pages",
    "restored",
}


def test_random_operations_match_the_naive_model() -> None:
    assert set(run(max_examples=80, steps=40)) <= EVENTS


def random_operations(seed: int, count: int) -> Counter[str]:
    """The same without hypothesis: faster, evenly spread, and longer than it would go; a failure names its seed."""

    class Machine(PoolAndTree):
        pass

    Machine.events = Counter()
    draw = random.Random(seed)
    machine = Machine()
    machine.start(draw.choice([1, 2, 3, 16]), draw.choice([0, 3, 8, 20, 60]))
    for _ in range(count):
        operations = ["call", "call", "call", "step", "hint", "evict"]
        operations += ["admit"] * 2 if len(machine.running) < 4 else []
        operations += ["hold"] if len(machine.handles) < 3 else []
        operations += ["let_go"] * 2 if machine.handles else []
        operations += ["grow", "insert", "finish", "finish"] if machine.running else []
        operation = draw.choice(["flush", "step_fails"] if draw.random() < 0.03 else operations)
        if operation in {"call", "admit", "hint", "hold"}:
            getattr(machine, operation)(draw.choice(["", "", "a"]), draw)
        elif operation == "evict":
            machine.evict(draw.randint(1, 6))
        elif operation == "step":
            machine.step()
        else:
            getattr(machine, operation)(draw)
        machine.balances()
    return machine.events


def test_long_runs_match_the_naive_model() -> None:
    events = Counter[str]()
    for seed in range(16):
        events += random_operations(seed, 250)
    assert set(events) == EVENTS


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_operations_match_the_naive_model() -> None:
    events = Counter[str]()
    for seed in range(100, 600):
        events += random_operations(seed, 200)
    assert set(events) == EVENTS
