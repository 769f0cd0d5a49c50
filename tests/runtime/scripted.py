"""A model without numbers for the engine's tests: what it says depends on every token that its simulated KV pages hold.

Each place of a page keeps a digest of the whole prefix up to it. A slot continues from the digest that its own page holds, so a
wrong page, a missing copy or a page written over by another sequence changes the output (and is caught by an assertion first).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Unpack

import numpy as np

from branchpoint.constrained.errors import MatcherError
from branchpoint.constrained.grammar import MaskRow
from branchpoint.constrained.spec import Choice, Constraint, Demands, Narrowing
from branchpoint.radix import CopyCost, HostTier, Swap
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.speculation import Speculation
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.generation import TokenTable
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.messages import Delta, Event, SampleFinished, TokenLogprob
from branchpoint.runtime.plan import UNKNOWN, MaskSource, RowResult, Slot, StepPlan, StepResult, TokenMove

VOCABULARY = 40
EOS = 39
CONTEXT = 400
GARBAGE = (-1, -1)

TABLE = TokenTable(
    size=VOCABULARY,
    eos=frozenset({EOS}),
    special=frozenset({EOS}),
    bytes_of=lambda token: b"<eos>" if token == EOS else bytes([97 + token % 26]) * (1 + token // 26),
)


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(TABLE.bytes_of(token) for token in tokens).decode()


def mix(*values: int) -> int:
    state = 0x243F6A8885A308D3
    for value in values:
        state = ((state ^ (value & 0xFFFFFFFFFFFFFFFF)) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 29
    return state


def digest(tokens: Sequence[int]) -> int:
    state = 0
    for token in tokens:
        state = mix(state, token)
    return state


def logprob(state: int, token: int) -> float:
    return -0.5 - (mix(state, token, 5) % 10_000) / 1_000


def best(state: int, count: int) -> tuple[tuple[int, float], ...]:
    ranked = sorted(((token, logprob(state, token)) for token in range(VOCABULARY)), key=lambda pair: (-pair[1], pair[0]))
    return tuple(ranked[:count])


def choose(state: int, seed: int, position: int, allowed: Iterable[int]) -> int:
    """The token behind a prefix: the best of the allowed ones under this seed's noise at this position."""
    return max(allowed, key=lambda token: mix(state, seed, position, token))


@dataclass
class ScriptedRunner:
    """Obeys plans over `num_pages` pages. `fault` is raised by the next execute, which leaves garbage behind. Prompts that
    contain a token of `poison` give broken rows.
    """

    num_pages: int = 64
    page_size: int = 4
    fault: Exception | None = None
    poison: frozenset[int] = frozenset()
    plans: list[StepPlan] = field(default_factory=list)

    runs_ahead: bool = False

    def __post_init__(self) -> None:
        self.num_ahead = 0
        self.host: dict[int, list[tuple[int, int]]] = {}
        self.memory = [[GARBAGE] * self.page_size for _ in range(self.num_pages)]

    def execute(self, plan: StepPlan, masks: MaskSource) -> StepResult:
        step = Scripted(self, plan, self._forward(plan, {}))
        step.draw(masks)
        return step.finish()

    def launch(self, plan: StepPlan, *before: "Scripted") -> "Scripted":
        """Computes at once, with the tokens that the steps `before` have drawn, as a device does in the order of its stream."""
        if plan.sources:
            assert before
            if failed := next((step.failure for step in before if step.failure), None):
                return Scripted(self, plan, [], failed)
            assert all(step.is_drawn for step in before), "the step before has drawn nothing yet"
            self.num_ahead += 1
        drawn = [token for step in before for token in step.tokens]
        sources = zip(plan.slots, plan.sources, strict=False)
        fed = {slot.sequence: [drawn[row] for row in rows] for slot, rows in sources}
        try:
            return Scripted(self, plan, self._forward(plan, fed))
        except Exception as error:  # noqa: BLE001  # it fails when it is asked for
            return Scripted(self, plan, [], error)

    def _forward(self, plan: StepPlan, fed: "Mapping[Sequence, list[int | None]]") -> list[list[tuple[Slot, int, int]]]:
        """The wanted rows of each slot: their positions and states."""
        self.plans.append(plan)
        for copy in plan.copies:
            if isinstance(copy, Swap):
                self._swap(copy)
            elif isinstance(copy, TokenMove):
                held = [self.memory[at // self.page_size][at % self.page_size] for at in copy.sources]
                for at, content in zip(copy.targets, held, strict=True):
                    self.memory[at // self.page_size][at % self.page_size] = content
            else:
                self.memory[copy.target][: copy.count] = self.memory[copy.source][: copy.count]
        if self.fault:
            fault, self.fault = self.fault, None
            for slot in plan.slots:
                for position in range(slot.start, slot.start + slot.count):
                    self._write(slot.sequence.pages, position, GARBAGE)
            raise fault
        states = []
        for slot in plan.slots:
            state = 0
            for position in range(slot.start):
                held = self.memory[slot.sequence.pages[position // self.page_size]][position % self.page_size]
                known = position < slot.sequence.num_tokens  # else it was fed to a pass that nobody has looked at yet
                expected = mix(state, slot.sequence.tokens[position]) if known else held[1]
                assert held == (position, expected), f"KV of position {position} is {held}, not {expected}"
                state = held[1]
            states.append(state)
        rows = []
        for slot, state in zip(plan.slots, states, strict=True):
            found, way = {}, [state]
            given = fed.get(slot.sequence, [])
            tokens = [*slot.tokens[: slot.count - len(given)], *given]
            assert len(tokens) == slot.count
            for at, token in enumerate(tokens, slot.start):
                assert token != UNKNOWN
                token = 0 if token is None else token  # a row that broke: whatever comes of it, nobody will look
                position = slot.position_of(at)
                del way[position - slot.start + 1 :]
                way.append(mix(way[-1], token))
                self._write(slot.sequence.pages, at, (position, way[-1]))
                found[at] = way[-1]
            rows.append([(slot, at, found[at]) for at in slot.rows])
        return rows

    def _swap(self, swap: Swap) -> None:
        """All at once, as a device may do it."""
        held = [list(self.memory[page]) for page, _ in swap.pairs]
        for (page, slot), content in zip(swap.pairs, held, strict=True):
            if swap.to_host:
                self.host[slot] = content
            else:
                self.memory[page] = list(self.host[slot])

    def _write(self, pages: list[int], position: int, value: tuple[int, int]) -> None:
        self.memory[pages[position // self.page_size]][position % self.page_size] = value

    def row(self, slot: Slot, at: int, state: int, mask: np.ndarray | None, number: int) -> RowResult:
        sequence, sample, position = slot.sequence, slot.sample, slot.position_of(at)
        if self.poison.intersection(sequence.tokens[: sequence.num_prompt]):
            return RowResult(None, error="The logits are not numbers.")
        sampling = sequence.sampling
        asked = sampling.prompt_logprobs if position + 1 < sequence.num_prompt else sampling.logprobs
        known = None
        own = sequence.tokens[position + 1] if position + 1 < sequence.num_tokens else slot.guess_behind(at)
        if own is not None and (not sample or asked is not None):
            known = logprob(state, own)
        others = tuple(logprob(state, other) for other in sequence.asked.get(position, ()))
        top = best(state, asked) if asked else ()

        def told(token: int | None, *, replaced: bool = False) -> RowResult:
            chosen = logprob(state, token) if token is not None and asked is not None else None
            return RowResult(token, chosen, known, top, asked=others, replaced=replaced)

        if not sample:
            return told(None)
        row = None if mask is None else mask[number]
        seed = sequence.seed if sampling.temperature else 0
        allowed = [token for token in range(VOCABULARY) if row is None or row[token // 32] >> (token % 32) & 1]
        if position + 1 - sequence.num_prompt < sampling.min_tokens:
            allowed = [token for token in allowed if token not in {EOS, *sampling.stop_token_ids}] or allowed
        first, residue = choose(state, seed, position + 1, allowed), sequence.residue
        if residue is None or position + 1 != sequence.num_tokens:
            return told(first)

        def judged() -> RowResult:
            if sequence.residue is None:
                return told(first)  # it has ended since
            token = choose(state, seed, position + 1, [token for token in allowed if residue.allows(token)])
            return told(token, replaced=token != first)

        return replace(told(first), doubt=judged) if self.runs_ahead else judged()


@dataclass
class Scripted:
    """A step that a scripted runner has launched."""

    runner: ScriptedRunner
    plan: StepPlan
    rows: list[list[tuple[Slot, int, int]]]
    failure: Exception | None = None
    result: StepResult | None = None
    is_drawn: bool = False
    tokens: list[int | None] = field(default_factory=list)

    def draw(self, masks: MaskSource) -> None:
        """Draws as a device does, which nobody can ask what a residue refuses: `tokens` are those that the next step gets."""
        assert not self.is_drawn
        self.is_drawn = True
        mask = masks()
        assert mask is None or mask.shape == (self.plan.num_rows, (VOCABULARY + 31) // 32)
        numbers = iter(range(self.plan.num_rows))
        rows = tuple(
            tuple(self.runner.row(slot, at, state, mask, next(numbers)) for slot, at, state in group) for group in self.rows
        )
        self.result = StepResult(rows)
        self.tokens = [row.token for group in rows for row in group]

    def finish(self) -> StepResult:
        if self.failure:
            raise self.failure
        assert self.result
        return self.result


@dataclass
class ListMatcher:
    """Allows, place by place, the tokens of `sets`; then only an end. Knows what is forced: sets of one."""

    sets: tuple[frozenset[int], ...]
    at: int = 0
    broken_at: int = -1

    def _here(self) -> frozenset[int]:
        return self.sets[self.at] if self.at < len(self.sets) else frozenset({EOS})

    def fill(self, row: MaskRow) -> None:
        if self.at == self.broken_at:
            raise MatcherError("The cursor is broken.")
        row[:] = 0
        for token in self._here():
            row.view(np.uint32)[token // 32] |= np.uint32(1 << (token % 32))

    def fill_loosely(self, row: MaskRow) -> None:
        self.fill(row)

    def advance(self, tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            if token not in self._here() or token == EOS:
                return count
            self.at += 1
        return len(tokens)

    def rollback(self, count: int) -> None:
        self.at -= count

    def forced(self) -> list[int]:
        tokens = []
        for allowed in self.sets[self.at :]:
            if len(allowed) > 1:
                break
            tokens += allowed
        return tokens

    @property
    def can_end(self) -> bool:
        return self.at == len(self.sets)

    @property
    def finished(self) -> bool:
        return self.at == len(self.sets)


@dataclass(eq=False)
class ListGrammar:
    sets: tuple[frozenset[int], ...]
    narrowed: tuple[Narrowing, ...] = ()
    broken_at: int = -1

    def matcher(self) -> ListMatcher:
        return ListMatcher(self.sets, broken_at=self.broken_at)


def sets_of(constraint: Constraint) -> tuple[frozenset[int], ...]:
    """The toy grammar: `Choice(("1,2", "7", "3,4"))` is one of 1, 2; then 7; then one of 3, 4."""
    assert isinstance(constraint, Choice)
    return tuple(frozenset(map(int, option.split(","))) for option in constraint.options)


class ScriptedCompiler:
    """Compiles at once, or when `release` is called. The option `bad` doesn't compile."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once = at_once
        self.waiting: list[tuple[Future[ListGrammar], Constraint | None, bytes]] = []

    def compile(
        self,
        constraint: Constraint | None,
        prefix: bytes,
        owner: str = "",
        **demands: Unpack[Demands],
    ) -> Future[ListGrammar]:
        future: Future[ListGrammar] = Future()
        self.waiting.append((future, constraint, prefix))
        if self.at_once:
            self.release()
        return future

    def release(self) -> None:
        for future, constraint, prefix in self.waiting:
            try:
                future.set_result(self._grammar(constraint, prefix))
            except (MatcherError, ValueError) as error:
                future.set_exception(MatcherError(f"bad grammar: {error}"))
        self.waiting.clear()

    def _grammar(self, constraint: Constraint | None, prefix: bytes) -> ListGrammar:
        healing = tuple(frozenset({byte - 97}) for byte in prefix)
        if constraint is None:
            return ListGrammar(healing)
        options = constraint.options if isinstance(constraint, Choice) else ()
        broken = options.index("broken") if "broken" in options else -1
        rest = Choice(tuple(option for option in options if option != "broken"))
        return ListGrammar(healing + sets_of(rest), broken_at=broken)


@dataclass
class Ticking:
    """A clock by which each look takes a millisecond, and nothing else any time: what happens can be made to happen again."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def make_engine(
    runner: ScriptedRunner | None = None,
    compiler: ScriptedCompiler | None = None,
    context: int = CONTEXT,
    speculation: Speculation | None = None,
    clock: Callable[[], float] | None = None,
    adapters: Adapters | None = None,
    **options: object,
) -> Engine:
    """With the option `host_pages` there is a second tier of so many pages, from which every page is worth bringing back."""
    host_pages = options.pop("host_pages", 0)
    config = EngineConfig(model="dummy", **{"max_batch_tokens": 32, "max_sequences": 8, "seed": 1, **options})  # type: ignore[arg-type]
    runner = runner or ScriptedRunner()
    tier = HostTier(host_pages, runner.page_size) if host_pages else None  # type: ignore[arg-type]
    cost = CopyCost(fixed=0.0, page=0.0, token=1.0) if host_pages else None
    compiler = compiler or ScriptedCompiler()
    return Engine(
        config,
        runner,
        compiler,
        TABLE,
        context,
        clock=clock or Ticking(),
        host=tier,
        copy_cost=cost,
        speculation=speculation,
        adapters=adapters,
    )


@dataclass
class Collected:
    """What the events of one call say, by sample."""

    text: dict[int, str] = field(default_factory=dict)
    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    finished: dict[int, SampleFinished] = field(default_factory=dict)
    end: Event | None = None

    def add(self, event: Event) -> None:
        assert self.end is None, f"{event} came after the terminal event {self.end}"
        if isinstance(event, Delta):
            assert event.index not in self.finished, "a delta came after its sample's end"
            self.text[event.index] = self.text.get(event.index, "") + event.text
            self.tokens[event.index] = self.tokens.get(event.index, ()) + event.tokens
            self.logprobs[event.index] = self.logprobs.get(event.index, ()) + event.logprobs
        elif isinstance(event, SampleFinished):
            assert event.index not in self.finished, "a sample ended twice"
            self.finished[event.index] = event
        else:
            self.end = event


def collect(events: Sequence[Event], into: dict[str, Collected]) -> None:
    for event in events:
        into.setdefault(event.id, Collected()).add(event)


def run(engine: Engine, *calls: object, max_steps: int = 5_000) -> dict[str, Collected]:
    """Submit all calls, step until nothing is left, check after each step."""
    results: dict[str, Collected] = {}
    for call in calls:
        engine.submit(call)  # type: ignore[arg-type]
    for _ in range(max_steps):
        if not engine.has_work:
            return results
        collect(engine.step(), results)
        engine.check()
    raise AssertionError(f"{max_steps} steps did not finish the calls: {engine.stats()}")


def close(left: float | None, right: float | None) -> bool:
    return left is not None and right is not None and math.isclose(left, right, abs_tol=1e-9)
