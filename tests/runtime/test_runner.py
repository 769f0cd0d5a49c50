"""The torch runner on small random models: the same logits however a sequence is cut, paged and batched."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from branchpoint.radix import Swap
from branchpoint.runtime.attention import CpuAttention
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.loading import largest_plan, load_runner
from branchpoint.runtime.logprobs import WantedRow, wanted_rows
from branchpoint.runtime.plan import Copy, PageCopy, RowResult, Slot, StepPlan, StepResult, TokenMask, TokenMove
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.loader import LoadedModel, load_model

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)


class _Recorder(Sampler):
    """Keeps the logits of each row by sequence and position."""

    def __init__(self) -> None:
        super().__init__(())
        self.seen: dict[tuple[str, int], torch.Tensor] = {}
        self.logged: list[torch.Tensor] = []

    def sample(self, logits: torch.Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        for row, values in zip(rows, logits, strict=True):
            self.seen[row.sequence.call_id, row.position] = values.clone()
            self.logged.append(values.clone())
        return super().sample(logits, rows, mask)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return load_model(EngineConfig(model=f"dummy:{request.param}", threads=1, seed=1), CPU)


class _World:
    """A runner with pages handed out by the test."""

    def __init__(self, loaded: LoadedModel, page_size: int, *, shuffle: int | None = None, num_pages: int = 4096) -> None:
        self.recorder = _Recorder()
        attention = CpuAttention(loaded.config, num_pages, page_size, loaded.dtype, CPU)
        self.runner = TorchRunner(loaded.model, attention, self.recorder, CPU)
        ids = list(range(num_pages))
        if shuffle is not None:
            random.Random(shuffle).shuffle(ids)
        self.ids: Iterator[int] = iter(ids)

    def sequence(
        self, name: str, tokens: list[int], pages: list[int] | None = None, sampling: SamplingParams = GREEDY
    ) -> Sequence:
        """A sequence with pages for all its tokens, the first of them given."""
        sequence = Sequence(name, 0, list(tokens), len(tokens), sampling, 7, pages=list(pages or []))
        while len(sequence.pages) * self.runner.page_size < len(tokens):
            sequence.pages.append(next(self.ids))
        return sequence

    def run(self, *slots: Slot, copies: tuple[Copy, ...] = ()) -> StepResult:
        return self.runner.execute(StepPlan(slots, copies), lambda: None)

    def chunks(self, sequence: Sequence, size: int, begin: int = 0) -> list[Slot]:
        """Slots that compute the sequence in chunks, all rows wanted."""
        count = sequence.num_tokens
        return [
            Slot(sequence, at, min(size, count - at), tuple(range(at, min(at + size, count)))) for at in range(begin, count, size)
        ]

    def logits(self, name: str) -> torch.Tensor:
        """The logits of every position of a sequence, in order."""
        rows = sorted((position, row) for (owner, position), row in self.recorder.seen.items() if owner == name)
        return torch.stack([row for _, row in rows])


def _tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(512), k=count)


def _alone(loaded: LoadedModel, tokens: list[int]) -> torch.Tensor:
    """The logits of a sequence computed in one go, by itself."""
    world = _World(loaded, 128)
    world.run(*world.chunks(world.sequence("alone", tokens), len(tokens)))
    return world.logits("alone")


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("shuffle", [None, 5])
def test_chunks_and_pages_change_no_logits(loaded: LoadedModel, page_size: int, chunk: int, shuffle: int | None) -> None:
    tokens = _tokens(100, seed=1)
    world = _World(loaded, page_size, shuffle=shuffle)
    for slot in world.chunks(world.sequence("a", tokens), chunk):
        world.run(slot)
    _close(world.logits("a"), _alone(loaded, tokens))


@pytest.mark.parametrize("page_size", [1, 16])
def test_batches_of_prefill_decode_and_verify_change_no_logits(loaded: LoadedModel, page_size: int) -> None:
    rng = random.Random(3)
    world = _World(loaded, page_size, shuffle=2)
    prompts = {f"s{i}": _tokens(rng.choice([2, 30, 90, 400]), seed=i) for i in range(9)}
    waiting = []
    for name, tokens in prompts.items():
        chunk = rng.choice([1, 4, 16, 80]) if len(tokens) < 100 else 80
        waiting.append(world.chunks(world.sequence(name, tokens), chunk))
    while any(waiting):
        batch = [slots.pop(0) for slots in waiting if slots and rng.random() < 0.8]
        world.run(*batch)
    for name, tokens in prompts.items():
        _close(world.logits(name), _alone(loaded, tokens))


def test_sequences_on_the_same_pages_share_them(loaded: LoadedModel) -> None:
    """Forks of forks: the trunk is computed once, and the copied page of a partial match continues on its own."""
    world = _World(loaded, 16)
    trunk, branch = _tokens(320, seed=1), _tokens(168, seed=2)
    first = world.sequence("first", trunk + branch)
    world.run(*world.chunks(first, 488))
    shared, split = first.pages[:30], first.pages[30]  # 480 tokens in full pages, 8 more in the next
    forks, copies = [], []
    for index in range(4):
        own = next(world.ids)
        copies.append(PageCopy(split, own, 8))
        forks.append(world.sequence(f"fork{index}", trunk + branch + _tokens(5, seed=10 + index), [*shared, own]))
    other = world.sequence("other", trunk + _tokens(40, seed=99), first.pages[:20])
    world.run(*[Slot(fork, 488, 1, (488,)) for fork in forks], Slot(other, 320, 40, (359,)), copies=tuple(copies))
    for at in range(489, 493):
        world.run(*[Slot(fork, at, 1, (at,)) for fork in forks])
    for index, fork in enumerate(forks):
        _close(world.logits(f"fork{index}"), _alone(loaded, fork.tokens)[488:])
    _close(world.logits("other"), _alone(loaded, other.tokens)[359:])
    world.run(*world.chunks(world.sequence("again", first.tokens, first.pages), 488, begin=480))
    _close(world.logits("again"), _alone(loaded, first.tokens)[480:])


@pytest.mark.parametrize("page_size", [3, 16])
def test_guesses_of_a_tree_are_computed_as_if_each_way_were_alone(loaded: LoadedModel, page_size: int) -> None:
    world, prompt = _World(loaded, page_size, shuffle=4), _tokens(30, seed=1)
    guesses, depths, ways = tuple(_tokens(6, seed=2)), (0, 1, 2, 1, 2, 0), ((0, 1, 2), (0, 3, 4), (5,))
    sequence = world.sequence("a", [*prompt, *guesses])
    del sequence.tokens[len(prompt) :]
    slot = Slot(sequence, 0, 36, tuple(range(29, 36)), draft=guesses, depths=depths)
    rows = wanted_rows(StepPlan((slot,)))
    assert [row.position for row in rows] == [29, 30, 31, 32, 31, 32, 30]
    for way in ways:
        world.run(slot)
        logits = world.recorder.logged[-7:]
        expected = _alone(loaded, [*prompt, *(guesses[guess] for guess in way)])
        _close(torch.stack([logits[1 + guess] for guess in way]), expected[30:])
        assert [rows[1 + guess].history for guess in way][-1] == [*prompt, *(guesses[guess] for guess in way)]
        sequence.tokens += [*(guesses[guess] for guess in way), 7]
        places = [sequence.pages[at // page_size] * page_size + at % page_size for at in range(36)]
        moved = [(30 + guess, 30 + place) for place, guess in enumerate(way) if guess != place]
        move = TokenMove(*(tuple(places[at] for at in ats) for ats in zip(*moved, strict=True))) if moved else None
        world.run(Slot(sequence, len(sequence.tokens) - 1, 1, (len(sequence.tokens) - 1,)), copies=(move,) if move else ())
        _close(world.recorder.logged[-1], _alone(loaded, sequence.tokens)[-1])
        del sequence.tokens[len(prompt) :]


def test_copies_happen_in_order_and_stop_at_their_count(loaded: LoadedModel) -> None:
    world = _World(loaded, 16)
    keys = world.runner._attention.caches[0].view(-1, 16, 4, 16)
    keys[:4] = torch.arange(4.0)[:, None, None, None]
    world.run(copies=(PageCopy(1, 5, 16), PageCopy(5, 6, 3), PageCopy(2, 1, 1), PageCopy(3, 7, 0)))
    assert keys[5].unique().tolist() == [1]
    assert keys[6, :, 0, 0].tolist() == [1.0] * 3 + [0.0] * 13
    assert keys[1, :, 0, 0].tolist() == [2.0] + [1.0] * 15
    assert keys[7].unique().tolist() == [0]


def test_a_freed_page_full_of_nan_spoils_nobody(loaded: LoadedModel) -> None:
    world = _World(loaded, 16)
    attention = world.runner._attention
    for cache in attention.caches:
        cache.fill_(torch.nan)
    sequences = [world.sequence(f"s{i}", _tokens(20 + i, seed=i)) for i in range(3)]
    world.run(*[slot for sequence in sequences for slot in world.chunks(sequence, 19)[:1]])
    world.run(*[Slot(sequence, 19, sequence.num_tokens - 19, (sequence.num_tokens - 1,)) for sequence in sequences])
    for sequence in sequences:
        _close(world.logits(sequence.call_id)[-1], _alone(loaded, sequence.tokens)[-1])


def test_results_align_with_slots_and_rows(loaded: LoadedModel) -> None:
    world = _World(loaded, 16)
    one, two = world.sequence("one", _tokens(9, seed=1)), world.sequence("two", _tokens(5, seed=2))
    plan = StepPlan((Slot(one, 0, 9, (3, 8)), Slot(two, 0, 2), Slot(two, 2, 3, (4,), sample=False)))
    result = world.runner.execute(plan, lambda: None)
    assert [len(rows) for rows in result.rows] == [2, 0, 1]
    assert [row.token for row in result.rows[0]] == [int(world.recorder.seen["one", at].argmax()) for at in (3, 8)]
    assert result.rows[2][0].token is None
    assert result.forward_seconds > 0


def test_masks_are_asked_once_whatever_the_plan_holds(loaded: LoadedModel) -> None:
    world = _World(loaded, 16)
    asked: list[int] = []

    def masks() -> TokenMask | None:
        asked.append(1)
        return None

    sequence = world.sequence("a", _tokens(20, seed=1))
    for plan in (StepPlan(()), StepPlan((), (PageCopy(5, 6, 3),)), StepPlan((Slot(sequence, 0, 20),))):
        assert world.runner.execute(plan, masks).rows == tuple(() for _ in plan.slots)
    assert len(asked) == 3


def test_a_mask_decides_what_is_drawn(loaded: LoadedModel) -> None:
    world = _World(loaded, 16)
    a, b = world.sequence("a", _tokens(4, seed=1)), world.sequence("b", _tokens(4, seed=2))
    mask = np.full((2, 16), -1, dtype=np.int32)
    mask[1] = 0
    mask[1, 3] = 1 << 5
    result = world.runner.execute(StepPlan((Slot(a, 0, 4, (3,)), Slot(b, 0, 4, (3,)))), lambda: mask)
    assert result.rows[1][0].token == 3 * 32 + 5
    assert result.rows[0][0].token == int(world.recorder.seen["a", 3].argmax())


def test_prompt_logprobs_span_many_stretches_of_logits(loaded: LoadedModel) -> None:
    world = _World(loaded, 16)
    tokens = _tokens(600, seed=4)
    sequence = world.sequence("a", tokens, sampling=SamplingParams(temperature=0, prompt_logprobs=1))
    slot = Slot(sequence, 0, 600, tuple(range(600)))
    mask = np.full((600, 16), -1, dtype=np.int32)
    mask[599] = 0
    mask[599, 0] = 2
    rows = world.runner.execute(StepPlan((slot,)), lambda: mask).rows[0]
    raw = _alone(loaded, tokens).log_softmax(-1)
    expected = raw[torch.arange(599), torch.tensor(tokens[1:])]
    torch.testing.assert_close(torch.tensor([row.known for row in rows[:-1]]), expected, atol=1e-4, rtol=1e-4)
    assert rows[-1].token == 1


def test_load_runner_makes_the_pool_it_says() -> None:
    made = load_runner(EngineConfig(model="dummy:llama", threads=1, num_pages=50, page_size=8))
    runner, loaded = made.runner, made.model
    assert (runner.num_pages, runner.page_size) == (50, 8)
    assert loaded.config.vocabulary_size == 512


def test_pages_come_back_from_host_memory_as_they_left() -> None:
    runner = load_runner(EngineConfig(model="dummy:llama", num_pages=8, page_size=4, host_kv_memory_gib=0.001, threads=1)).runner
    assert runner.host is not None and runner.copy_cost is not None and runner.copy_cost.token > 0
    tokens = _tokens(9, 3)

    def last_row(plan: StepPlan) -> float | None:
        return runner.execute(plan, lambda: None).rows[0][0].logprob

    def sequence(pages: list[int]) -> Sequence:
        return Sequence("s", 0, tokens, 9, SamplingParams(temperature=0, logprobs=0), 0, pages=pages)

    first = last_row(StepPlan((Slot(sequence([0, 1, 2]), 0, 9, (8,)),)))
    leave = Swap(to_host=True, pairs=((0, 5), (1, 3)))
    other = Sequence("o", 0, _tokens(8, 4), 8, GREEDY, 0, pages=[0, 1])
    runner.execute(StepPlan((Slot(other, 0, 8, ()),), (leave,)), lambda: None)
    back = Swap(to_host=False, pairs=((6, 5), (7, 3)))
    again = last_row(StepPlan((Slot(sequence([6, 7, 4]), 8, 1, (8,)),), (back,)))
    assert again == pytest.approx(first, abs=1e-4)
    assert last_row(StepPlan((Slot(sequence([0, 1, 4]), 8, 1, (8,)),))) != pytest.approx(first, abs=1e-4)


def test_the_largest_step_is_as_large_as_one_may_be_and_runs(loaded: LoadedModel) -> None:
    for tokens, context, sequences, page_size in [(100, 64, 8, 16), (30, 512, 2, 7), (64, 16, 2, 16), (5, 16, 9, 1)]:
        plan = largest_plan(tokens, context, sequences, page_size)
        assert plan.num_tokens == min(tokens, sequences * context)
        assert plan.num_rows == min(sequences, min(tokens, context))
        pages = [page for slot in plan.slots for page in slot.sequence.pages]
        assert sorted(set(pages)) == pages == list(range(len(pages)))
    world = _World(loaded, 16, num_pages=8)
    result = world.runner.execute(largest_plan(100, 64, 8, 16), lambda: None)
    assert [len(rows) for rows in result.rows] == [8, 0]
