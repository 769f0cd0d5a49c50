"""Random operations on pool and tree, held against a naive model: token lists, and a memory that knows what was written."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from branchpoint.radix import BlockPool, Handle, OutOfPages, PrefixKey, RadixTree, check_balance

NUM_PAGES = 24
namespaces = st.sampled_from(["", "", "", "a"])
data = st.data()


@dataclass
class Running:
    """A sequence as the engine would keep it: its tokens, and pages with a reference each."""

    namespace: str
    tokens: list[int]
    pages: list[int]


def common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    same = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        same += 1
    return same


class PoolAndTree(RuleBasedStateMachine):
    events: Counter[str]  # what the runs of one test came across

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @initialize(size=st.sampled_from([1, 3, 16]))
    def start(self, size: int) -> None:
        self.size = size
        self.pool = BlockPool(NUM_PAGES, size)
        self.tree = RadixTree(self.pool, clock=self.clock)
        self.memory: list[list[int]] = [[] for _ in range(NUM_PAGES)]
        self.running: list[Running] = []
        self.handles: list[Handle] = []
        self.cached: set[tuple[str, tuple[int, ...]]] = set()
        self.seen: list[list[int]] = [[]]

    def any_running(self, draw: st.DataObject) -> Running:
        return self.running[draw.draw(st.integers(0, len(self.running) - 1), label="running")]

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def suffix(self, draw: st.DataObject) -> list[int]:
        """Up to about two and a half pages, of few enough tokens that prefixes meet."""
        return draw.draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3]), max_size=2 + self.size * 5 // 2), label="suffix")

    def prompt(self, draw: st.DataObject) -> list[int]:
        """An earlier prompt or running sequence, cut somewhere and continued in another way."""
        base = draw.draw(st.sampled_from(self.seen[-6:] + [running.tokens for running in self.running]), label="base")
        tokens = base[: draw.draw(st.integers(0, len(base)), label="cut")] + self.suffix(draw)
        self.seen.append(tokens)
        return tokens

    def expected(self, namespace: str, tokens: list[int]) -> int:
        return max((common(path, tuple(tokens)) for name, path in self.cached if name == namespace), default=0)

    def matched(self, namespace: str, tokens: list[int], limit: int | None) -> Handle:
        key = PrefixKey(namespace, tokens)
        handle = self.tree.match(key, limit)
        bound = len(tokens) if limit is None else limit
        assert handle.num_tokens == min(bound, self.expected(namespace, tokens)) == self.tree.peek(key, limit)
        found = [token for page in handle.pages for token in self.memory[page][: self.size]]
        if handle.tail:
            assert 0 < handle.tail[1] < self.size
            self.events["copied a partial page"] += 1
            found += self.memory[handle.tail[0]][: handle.tail[1]]
        assert found == tokens[: handle.num_tokens]
        return handle

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
        for page in pages:
            assert self.pool.references(page) == 1
            self.memory[page] = []
        return pages

    def write(self, sequence: Running, tokens: list[int]) -> None:
        for token in tokens:
            page = self.memory[sequence.pages[len(sequence.tokens) // self.size]]
            assert len(page) == len(sequence.tokens) % self.size, "only the end of a page of its own is written"
            page.append(token)
            sequence.tokens.append(token)

    @rule(namespace=namespaces, draw=data)
    def admit(self, namespace: str, draw: st.DataObject) -> None:
        tokens = self.prompt(draw)
        with self.matched(namespace, tokens, max(len(tokens) - 1, 0)) as handle:
            own = self.take(-(-len(tokens) // self.size) - len(handle.pages))
            if own is None:
                return
            self.pool.retain(handle.pages)
            sequence = Running(namespace, tokens[: len(handle.pages) * self.size], [*handle.pages, *own])
            if handle.tail:
                page, count = handle.tail
                self.write(sequence, self.memory[page][:count])
        self.write(sequence, tokens[len(sequence.tokens) :])
        self.running.append(sequence)

    @precondition(lambda self: self.running)
    @rule(draw=data)
    def grow(self, draw: st.DataObject) -> None:
        sequence, suffix = self.any_running(draw), self.suffix(draw)
        own = self.take(-(-(len(sequence.tokens) + len(suffix)) // self.size) - len(sequence.pages))
        if own is not None:
            sequence.pages += own
            self.write(sequence, suffix)

    @precondition(lambda self: self.running)
    @rule(draw=data, priority=st.sampled_from([0, 0, 0, 1, 2]))
    def insert(self, draw: st.DataObject, priority: int) -> None:
        sequence = self.any_running(draw)
        count = draw.draw(st.integers(0, len(sequence.tokens)) | st.just(len(sequence.tokens)), label="count")
        self.insert_first(sequence, count, priority)

    def insert_first(self, sequence: Running, count: int, priority: int) -> None:
        tokens = tuple(sequence.tokens[:count])
        pages = sequence.pages[: -(-len(tokens) // self.size)]
        new = self.tree.insert(PrefixKey(sequence.namespace, tokens), pages, priority=priority)
        assert new == len(tokens) - self.expected(sequence.namespace, list(tokens))
        self.events["cached nothing new" if tokens and not new else "cached"] += 1
        self.cached.add((sequence.namespace, tokens))
        assert self.tree.peek(PrefixKey(sequence.namespace, tokens)) == len(tokens)

    @precondition(lambda self: self.running)
    @rule(draw=data, keep=st.sampled_from([True, True, True, False]))
    def finish(self, draw: st.DataObject, keep: bool) -> None:
        sequence = self.any_running(draw)
        if keep:
            self.insert_first(sequence, len(sequence.tokens), 0)
        self.pool.release(sequence.pages)
        self.running = [other for other in self.running if other is not sequence]

    @rule(namespace=namespaces, draw=data, limit=st.none() | st.integers(0, 60))
    def hold(self, namespace: str, draw: st.DataObject, limit: int | None) -> None:
        self.handles.append(self.matched(namespace, self.prompt(draw), limit))

    @precondition(lambda self: self.handles)
    @rule(draw=data)
    def let_go(self, draw: st.DataObject) -> None:
        handle = self.handles.pop(draw.draw(st.integers(0, len(self.handles) - 1), label="handle"))
        handle.release()
        handle.release()

    @rule(n=st.integers(1, 6))
    def evict(self, n: int) -> None:
        free, evictable = self.pool.num_free, self.tree.num_evictable
        freed = self.tree.evict(n)
        assert freed == self.pool.num_free - free == min(n, evictable)
        self.events["evicted" if freed else "found nothing to evict"] += 1
        self.shrink_to(self.paths())

    @precondition(lambda self: len(self.cached) > 4)
    @rule()
    def flush(self) -> None:
        free, evictable = self.pool.num_free, self.tree.num_evictable
        assert self.tree.flush() == self.pool.num_free - free == evictable
        assert self.tree.num_pages == self.tree.num_tokens == 0
        self.shrink_to(set())

    def paths(self) -> set[tuple[str, tuple[int, ...]]]:
        paths: dict[int | None, tuple[int, ...]] = {None: ()}
        nodes = self.tree.dump()["nodes"]
        for node in nodes:
            paths[node["id"]] = (*paths[node["parent"]], *node["tokens"])
        return {(node["namespace"], paths[node["id"]]) for node in nodes}

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
        for handle in self.handles:
            held += handle.pages
            if handle.tail:
                held.append(handle.tail[0])
        check_balance(self.pool, held)


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


EVENTS = {"out of pages", "copied a partial page", "cached", "cached nothing new", "evicted", "found nothing to evict"}


def test_random_operations_match_the_naive_model() -> None:
    assert set(run(max_examples=120, steps=50)) == EVENTS


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_random_operations_match_the_naive_model() -> None:
    assert set(run(max_examples=1500, steps=100)) == EVENTS
