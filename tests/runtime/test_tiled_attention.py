"""The GPU's attention backend in Triton's interpreter: the same logits as the torch backend, little sent from step to step."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton")

from branchpoint.kernels import merge, paged
from branchpoint.kernels.layout import SlotTable
from branchpoint.kernels.operations import triton_operations
from branchpoint.runtime.attention import AttentionBackend, CpuAttention
from branchpoint.runtime.batch import Batch
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.page_tables import PageTables
from branchpoint.runtime.plan import PageCopy, RowResult, Slot, StepPlan, TokenMask
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampler import Sampler
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.tiled_attention import TiledAttention
from branchpoint.runtime.weights.loader import LoadedModel, load_model

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0)
NUM_PAGES = 64


class _Recorder(Sampler):
    """Keeps all logits in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(())
        self.seen: list[torch.Tensor] = []

    def sample(self, logits: torch.Tensor, rows: list[WantedRow], mask: TokenMask | None) -> list[RowResult]:
        self.seen.append(logits.clone())
        return super().sample(logits, rows, mask)


def _load() -> LoadedModel:
    return load_model(EngineConfig(model="dummy:qwen3", threads=1, seed=1), CPU)


def _tiled(loaded: LoadedModel, dtype: torch.dtype = torch.float32, *, share: bool = True) -> TiledAttention:
    return TiledAttention(loaded.config, NUM_PAGES, 16, dtype, CPU, query_dtype=torch.float32, max_sequences=4, share=share)


def _sequence(name: str, count: int, pages: list[int]) -> Sequence:
    return Sequence(name, 0, [(7 * at + len(name)) % 250 for at in range(count)], count, GREEDY, 7, pages=pages)


def _steps(loaded: LoadedModel, attention: AttentionBackend) -> torch.Tensor:
    """Logits of a prefill, of a token, drafts of its fork with a copied page and a chunk together, and of two more tokens."""
    recorder = _Recorder()
    runner = TorchRunner(loaded.model, attention, recorder, CPU)
    trunk, draft, chunk = _sequence("a", 24, [5, 9]), _sequence("a", 26, [5, 20]), _sequence("ccc", 16, [30])
    for plan in (
        StepPlan((Slot(trunk, 0, 21, (20,)),)),
        StepPlan((Slot(trunk, 21, 1, (21,)), Slot(draft, 20, 3, (20, 21, 22)), Slot(chunk, 0, 9, (8,))), (PageCopy(9, 20, 4),)),
        StepPlan((Slot(trunk, 22, 1, (22,)), Slot(chunk, 9, 1, (9,)))),
    ):
        runner.execute(plan, lambda: None)
    return torch.cat(recorder.seen)


def test_both_backends_give_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _steps(loaded := _load(), CpuAttention(loaded.config, NUM_PAGES, 16, torch.float32, CPU))
    monkeypatch.setattr("branchpoint.runtime.models.decoder.operations_for", lambda device: triton_operations())
    torch.testing.assert_close(_steps(loaded := _load(), _tiled(loaded)), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_an_8_bit_cache_gives_nearly_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("branchpoint.runtime.models.decoder.operations_for", lambda device: triton_operations())
    exact, narrow = (_steps(loaded := _load(), _tiled(loaded, dtype)) for dtype in (torch.float32, torch.float8_e4m3fn))
    assert torch.nn.functional.cosine_similarity(exact, narrow).min() > 0.95


def _batch(pages: list[list[int]], starts: list[int]) -> Batch:
    nothing = torch.empty(0, dtype=torch.int64)
    return Batch(nothing.expand(3, 0), None, SlotTable(pages, starts, [1] * len(starts), 16))


def test_steps_of_one_shape_lie_at_the_same_addresses() -> None:
    attention = _tiled(_load())
    pages = [list(range(30)), [40, 41]]
    attention.plan(_batch(pages, [300, 20]))
    first, plan = attention.plan_key, attention._plan
    attention.plan(_batch(pages, [301, 21]))
    again = attention._plan
    assert plan is not None and again is not None and attention.plan_key == first
    for left, right in zip(plan.launches, again.launches, strict=True):
        assert left.tiles.data_ptr() == right.tiles.data_ptr() and left.count.data_ptr() == right.count.data_ptr()
    for name in ("pages", "rows", "positions", "bases"):
        assert getattr(plan, name).data_ptr() == getattr(again, name).data_ptr()
    attention.plan(_batch([*pages, [50]], [479, 31, 3]))
    assert attention.plan_key != first, "a long context is split: there is something to merge"


def _told(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[dict[str, object]]:
    """The list that from now on gets the constants of each launch of a kernel, in whose place nothing is computed."""
    launches: list[dict[str, object]] = []

    class Kernel:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *values, **constants: launches.append(constants)

    monkeypatch.setattr(module, name, Kernel())
    return launches


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_warming_up_launches_every_form(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles, merges = _told(monkeypatch, paged, "_tile_kernel"), _told(monkeypatch, merge, "_merge_kernel")
    attention = _tiled(_load(), dtype)
    trees = dtype == torch.float32
    attention.warm_up(trees=trees)
    forms = {(each["BLOCK_M"], each["TREES"]) for each in tiles}
    assert forms == {(tiling.rows, form) for tiling in attention._shape.sizes for form in (False, True)[: 1 + trees]}
    assert len(merges) == 1 + trees


def test_page_tables_send_what_is_new_and_forget_who_waited_longest() -> None:
    tables = PageTables(2, 8, CPU)
    first, second, third = [4, 5], [6], [7, 8, 9]

    def held(at: int, count: int) -> list[int]:
        return tables.flat[at : at + count].tolist()

    at = tables.place([first, second])
    assert held(at[0], 2) == [4, 5] and held(at[1], 1) == [6]
    version = tables.version
    second.append(11)
    assert (tables.place([first, second]) == at).all() and held(at[1], 2) == [6, 11] and tables.version == version
    first[:] = [4, 9, 2]
    assert (tables.place([first]) == at[:1]).all() and held(at[0], 3) == [4, 9, 2] and tables.version > version
    assert tables.place([third, first])[0] == at[1], "the second was used longest ago"
    assert held(at[1], 3) == [7, 8, 9]
    assert tables.place([list(first), third])[1] == at[1], "another list is another sequence"


def test_shared_prefixes_are_found_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("branchpoint.runtime.tiled_attention.find_worthwhile_prefixes", lambda table, _: asked.append(1) or [])
    attention = _tiled(_load())
    pages = [[1, 2], [1, 3]]
    for start in (20, 21, 31, 32):
        if start == 32:
            pages[0].append(4)
        attention.plan(_batch(pages, [start, 20]))
    assert len(asked) == 1
    attention.plan(_batch([pages[1], pages[0]], [20, 33]))
    attention.plan(_batch([pages[1], pages[0], [9]], [20, 33, 1]))
    assert len(asked) == 3
    alone = _tiled(_load(), share=False)
    alone.plan(_batch(pages, [20, 20]))
    assert len(asked) == 3
