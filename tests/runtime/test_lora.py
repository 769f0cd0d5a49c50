"""Adapters beside a model's weights say what the model says with them merged in, whatever else is in the batch."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.errors import InvalidRequest, ModelError, RequestAborted, UnknownModel
from branchpoint.runtime.layers.linear import LinearSource, Plain
from branchpoint.runtime.lora.adapter import Adapter
from branchpoint.runtime.lora.peft import LoraAdapter, largest_adapter, read_adapter
from branchpoint.runtime.lora.placed import AdaptedLinear, LowRank, PlacedAdapters
from branchpoint.runtime.lora.registry import Adapters
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed, ScoreCall, Scored
from branchpoint.runtime.models.decoder import Decoder, load_decoder
from branchpoint.runtime.parallel import Shard
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.quant.int4 import Int4
from branchpoint.runtime.quant.int8 import Int8
from branchpoint.runtime.runner import TorchRunner
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.scheduler import MAX_PASSED_OVER
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.checkpoint import Checkpoint, Stored
from branchpoint.runtime.weights.dummy import DummyCheckpoint, dummy_config
from branchpoint.runtime.weights.gguf import GgufCheckpoint
from branchpoint.runtime.weights.loader import LoadedModel
from tests.runtime.adapters import MODULES, Merged, products, write_adapter
from tests.runtime.model_checks import logits_of, write_gguf
from tests.runtime.scripted import ScriptedRunner, make_engine
from tests.runtime.test_weights_gguf import tiny

CPU = torch.device("cpu")
SHAPE = dummy_config("llama")
PROMPT = tuple(range(3, 43))
PLAIN = Plain(CPU, torch.float32)


def decoder(checkpoint: Checkpoint) -> Decoder:
    with torch.inference_mode():
        return load_decoder(checkpoint, checkpoint.config, PLAIN, CPU, torch.float32, Shard())


def adapted(model: Decoder, folder: Path) -> Decoder:
    """`model` as it is for a step of `PROMPT` with the adapter of `folder`."""
    adapter, count = read_adapter("a", str(folder), model.config, 64), len(PROMPT)
    sequence = Sequence("a", 0, list(PROMPT), count, SamplingParams(), 0, adapter=adapter)
    found = PlacedAdapters(model, 1, CPU).model_for(StepPlan((Slot(sequence, 0, count),)))
    assert isinstance(found, Decoder)
    return found


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("qwen2", {"modules": ("k_proj", "up_proj"), "use_rslora": True, "rank": 3}),
        ("qwen3", {"modules": ("q_proj", "v_proj", "o_proj", "down_proj"), "layers": (1,), "dtype": torch.bfloat16}),
    ],
)
def test_logits_are_those_of_merged_weights(family: str, options: dict[str, object], tmp_path: Path) -> None:
    checkpoint = DummyCheckpoint(dummy_config(family), 0)
    folder = write_adapter(tmp_path, checkpoint.config, **options)  # type: ignore[arg-type]  # the case's own
    model = decoder(checkpoint)
    own, expected = (logits_of(each, PROMPT) for each in (model, decoder(Merged(checkpoint, folder))))
    assert (own - expected).abs().max() > 0.1
    torch.testing.assert_close(logits_of(adapted(model, folder), PROMPT), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits_of(model, PROMPT), own, rtol=0, atol=0)


def test_a_gguf_model_takes_adapters_by_the_names_and_row_order_that_they_were_trained_with(tmp_path: Path) -> None:
    """llama.cpp lays the rows of q and k in another order, which an adapter doesn't."""
    reference, file = tiny(), tmp_path / "model.gguf"
    write_gguf(file, reference, "llama")
    checkpoint = GgufCheckpoint(file)
    folder = write_adapter(tmp_path / "adapter", checkpoint.config)
    weights = dict(reference.named_parameters())
    with torch.inference_mode():
        for name, product in products(folder).items():
            weights[name] += product
        expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(adapted(decoder(checkpoint), folder), PROMPT), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", [PLAIN, Int8(), Int4()], ids=["float32", "int8", "int4"])
@pytest.mark.parametrize("rows", [slice(0, 7), slice(2, 5)])
def test_an_adapter_is_added_to_what_any_form_of_the_weights_gives(method: Plain | Int8 | Int4, rows: slice) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(shape, generator=generator) for shape in ((48, 64), (7, 64)))
    base = method.create(LinearSource("w", (Stored("w", (48, 64), "F32", lambda: weight),)))
    low = LowRank(torch.randn(64, 3, generator=generator), torch.randn(3, 48, generator=generator))
    got = AdaptedLinear(base, [(rows, low)], torch.float32).apply(x)
    expected = base.apply(x).float()
    expected[rows] += x[rows] @ (low.down @ low.up)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@contextmanager
def engine(model: LoadedModel | None = None, **options: object) -> Iterator[LoadedEngine]:
    given = {"model": "dummy:llama", "threads": 1, "num_pages": 256, "enable_lora": True, **options}
    loaded = build_engine(EngineConfig(**given), model)  # type: ignore[arg-type]  # a test's options
    try:
        yield loaded
    finally:
        loaded.engine.close()
        loaded.close()


def call(name: str, adapter: str = "", prompt: tuple[int, ...] = PROMPT, **options: object) -> Call:
    given = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, "seed": 3, **options}
    return Call(name, prompt, SamplingParams(**given), adapter=adapter)  # type: ignore[arg-type]  # a test's options


def run(loaded: LoadedEngine, *calls: Call | ScoreCall) -> list[Event]:
    for each in calls:
        loaded.engine.submit(each)
    events: list[Event] = []
    while loaded.engine.has_work:
        events += loaded.engine.step()
    return events


def texts(events: list[Event]) -> dict[str, tuple[int, ...]]:
    said: dict[str, tuple[int, ...]] = {}
    for event in events:
        assert not isinstance(event, Failed), event
        if isinstance(event, Delta):
            said[event.id] = said.get(event.id, ()) + event.tokens
    return said


def cached(events: list[Event], name: str) -> int:
    return next(event.usage.cached_tokens for event in events if isinstance(event, Completed | Scored) and event.id == name)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three adapters for the dummy model, of other ranks and of other matrices."""
    root = tmp_path_factory.mktemp("adapters")
    kinds: Mapping[str, dict[str, object]] = {
        "a": {},
        "b": {"rank": 2, "modules": ("v_proj", "gate_proj")},
        "c": {"rank": 8, "modules": MODULES[:4], "dtype": torch.bfloat16},
    }
    return {name: write_adapter(root / name, SHAPE, seed=at, **kind) for at, (name, kind) in enumerate(kinds.items())}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> Callable[..., tuple[int, ...]]:
    """What a model with the adapter of a name merged in says, alone."""
    merged = {name: decoder(Merged(DummyCheckpoint(SHAPE, 0), folder)) for name, folder in folders.items()}
    models = {"": decoder(DummyCheckpoint(SHAPE, 0)), **merged}
    known: dict[tuple[object, ...], tuple[int, ...]] = {}

    def say(adapter: str, prompt: tuple[int, ...] = PROMPT, **options: object) -> tuple[int, ...]:
        key = (adapter, prompt, *options.items())
        if key not in known:
            model = LoadedModel(models[adapter], SHAPE, None, "merged", torch.float32, torch.float32)
            with engine(model, enable_lora=False) as loaded:
                known[key] = texts(run(loaded, call("x", prompt=prompt, **options)))["x"]
        return known[key]

    return say


def named(folders: dict[str, Path]) -> dict[str, str]:
    return {name: str(folder) for name, folder in folders.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_loras": 1},
        {"max_batch_tokens": 16, "page_size": 4, "num_pages": 40, "host_kv_memory_gib": 0.001},
        {"drafters": ("radix", "suffix", "ngram"), "draft_adaptive": False},
        {"drafters": ("model",), "draft_model": "dummy:llama", "draft_adaptive": False},
        {"radix_cache": False, "policy": "fcfs", "max_sequences": 3},
    ],
    ids=["plain", "one at a time", "small pages, host tier", "drafting", "draft model", "no cache"],
)
def test_rows_of_one_batch_have_different_adapters_or_none(
    options: dict[str, object], folders: dict[str, Path], expected: Callable[..., tuple[int, ...]]
) -> None:
    """The same prompts, greedy and drawn, twice: nothing that one adapter has computed or said is taken for another's."""
    with engine(adapters=named(folders), **options) as loaded:
        assert isinstance(loaded.engine, Engine)
        for turn in range(2):
            calls = [call(f"{adapter}{turn}", adapter) for adapter in ("", "a", "b", "c")]
            calls += [call(f"{adapter}{turn} drawn", adapter, PROMPT[5:], temperature=1.0) for adapter in ("c", "", "b", "a")]
            got = texts(run(loaded, *calls))
            for one in calls:
                own = {"temperature": 1.0} if "drawn" in one.id else {}
                assert got[one.id] == expected(one.adapter, one.prompt, **own), one.id
        loaded.engine.check()
    assert len({expected(adapter) for adapter in ("", "a", "b", "c")}) == 4


def test_prefixes_are_shared_within_an_adapter_and_never_across(folders: dict[str, Path]) -> None:
    with engine(adapters=named(folders)) as loaded:
        for adapter in ("", "a", "b"):
            assert cached(run(loaded, call("first", adapter)), "first") == 0
            assert cached(run(loaded, call("second", adapter)), "second") == len(PROMPT) - 1
        options = ((5, 6), (7,))
        scores = [run(loaded, ScoreCall(f"s{name}", PROMPT, options, adapter=name)) for name in ("", "a")]
        assert [cached(events, name) for events, name in zip(scores, ("s", "sa"), strict=True)] == [len(PROMPT) + 1] * 2
        plain, own = (event.logprobs for events in scores for event in events if isinstance(event, Scored))
        assert plain != own


def test_a_name_loaded_again_goes_on_only_with_what_the_same_contents_computed(tmp_path: Path, folders: dict[str, Path]) -> None:
    with engine() as loaded:
        adapters = loaded.engine.adapters
        for folder, hit in (("a", 0), ("b", 0), ("a", len(PROMPT) - 1)):
            adapters.load("x", str(folders[folder]))
            assert cached(run(loaded, call("c", "x")), "c") == hit
            adapters.unload("x")
        adapters.load("x", str(folders["a"]))
        with pytest.raises(InvalidRequest, match="'x' is loaded already"):
            adapters.load("x", str(folders["b"]))
        adapters.load("x", str(folders["b"]), replace=True)
        assert cached(run(loaded, call("c", "x")), "c") == len(PROMPT) - 1
        rooted = write_adapter(tmp_path, SHAPE, seed=0, use_rslora=True)  # the same matrices, with another factor
        adapters.load("y", str(rooted))
        assert texts(run(loaded, call("y", "y"))) != texts(run(loaded, call("y", "x")))


def test_what_runs_when_its_adapter_is_unloaded_finishes_and_what_comes_later_is_refused(
    folders: dict[str, Path], expected: Callable[..., tuple[int, ...]]
) -> None:
    with engine(adapters=named(folders), max_sequences=1) as loaded:
        for name in ("runs", "waits"):
            loaded.engine.submit(call(name, "a"))
        events = loaded.engine.step()
        loaded.engine.adapters.unload("a")
        with pytest.raises(UnknownModel, match="No adapter 'a' is loaded"):
            loaded.engine.submit(call("late", "a"))
        loaded.engine.adapters.load("a", str(folders["b"]))
        events += run(loaded, call("new", "a"))
        assert texts(events) == {"runs": expected("a"), "waits": expected("a"), "new": expected("b")}
        with pytest.raises(UnknownModel):
            loaded.engine.adapters.unload("nobody")


def test_logprobs_of_a_prompt_are_those_of_its_own_adapter_whatever_runs_beside(folders: dict[str, Path]) -> None:
    checkpoint = DummyCheckpoint(SHAPE, 0)
    models = {"": decoder(checkpoint), "a": decoder(Merged(checkpoint, folders["a"]))}
    with engine(adapters=named(folders), max_batch_tokens=16) as loaded:
        events = run(loaded, *(call(f"of {name}", name, max_tokens=0, prompt_logprobs=1) for name in models))
    for name, model in models.items():
        (told,) = (event.prompt_logprobs for event in events if isinstance(event, Completed) and event.id == f"of {name}")
        rows = torch.log_softmax(logits_of(model, PROMPT), dim=-1)
        own = [entry.logprob for entry in told[1:]]
        assert told[0].logprob is None and [entry.token for entry in told] == list(PROMPT)
        torch.testing.assert_close(torch.tensor(own), rows[torch.arange(len(PROMPT) - 1), PROMPT[1:]], rtol=1e-4, atol=1e-4)


def test_adapters_beyond_the_most_give_way_to_those_used_last(folders: dict[str, Path]) -> None:
    model = decoder(DummyCheckpoint(SHAPE, 0))
    placed = PlacedAdapters(model, 2, CPU)
    read = {name: read_adapter(name, str(folder), SHAPE, 64) for name, folder in folders.items()}

    def step(*names: str) -> StepPlan:
        made = (Sequence(name, 0, [1], 1, SamplingParams(), 0, adapter=read.get(name)) for name in names)
        return StepPlan(tuple(Slot(each, 0, 1) for each in made))

    assert placed.model_for(step("", "")) is None and placed.num_placed == 0
    for names, held in (
        (("a",), 1),
        (("b", ""), 2),
        (("a",), 2),
        (("c",), 2),
        (("a", "c"), 2),
        (("a", "b", "c"), 3),
        (("b",), 2),
    ):
        assert placed.model_for(step(*names)) is not None
        assert placed.num_placed == held


class Slow:
    """Adapters take so many plans to come; which one was asked for in each."""

    def __init__(self, plans: int) -> None:
        self.left = plans
        self.asked: list[str] = []
        self.closed = False

    def ready(self, adapter: Adapter) -> bool:
        self.asked.append(adapter.name)
        self.left -= 1
        return self.left < 0

    def wait(self) -> None:
        self.left -= 1

    def close(self) -> None:
        self.closed = True


def test_while_an_adapter_is_on_its_way_all_others_run_and_run_ahead() -> None:
    runner = ScriptedRunner(runs_ahead=True)
    runner.adapters = slow = Slow(12)  # type: ignore[attr-defined]
    scripted = make_engine(runner, adapters=Adapters(lambda name, folder, *, within: Adapter(name, folder)), max_loras=1)
    scripted.adapters.load("a", "a")
    ends: list[str] = []
    scripted.submit(call("late", "a", (1, 2)))
    scripted.submit(call("late too", "a", (1, 2, 3)))
    for number in range(4):
        scripted.submit(call(f"plain {number}", "", (number, 5), max_tokens=5 + number))
    while scripted.has_work:
        ends += [event.id for event in scripted.step() if isinstance(event, Completed)]
        scripted.check()
    assert ends == ["plain 0", "plain 1", "plain 2", "plain 3", "late", "late too"]
    assert runner.num_ahead >= len(runner.plans) - 2, "but for the first, and where nobody ran"
    scripted.close()
    assert slow.closed


@pytest.mark.parametrize("most", [1, 2])
def test_adapters_that_are_brought_beside_the_steps_change_no_text(
    most: int, folders: dict[str, Path], expected: Callable[..., tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("branchpoint.runtime.loading.PlacedAdapters", partial(PlacedAdapters, apart=True))
    with engine(adapters=named(folders), max_loras=most) as loaded:
        assert isinstance(loaded.engine, Engine)
        runner = loaded.engine._runner
        assert isinstance(runner, TorchRunner) and runner.adapters is not None
        runner.runs_ahead = True
        calls = [call(f"{adapter} {number}", adapter) for number in range(2) for adapter in ("", "a", "b", "c")]
        got = texts(run(loaded, *calls))
        assert got == {one.id: expected(one.adapter) for one in calls}
        assert runner.adapters.num_placed <= most
        loaded.engine.check()


def test_an_adapter_that_cannot_be_brought_ends_the_step_that_needs_it(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = PlacedAdapters(decoder(DummyCheckpoint(SHAPE, 0)), 1, CPU, apart=True)
    read = read_adapter("a", str(folders["a"]), SHAPE, 64)
    step = StepPlan((Slot(Sequence("a", 0, [1], 1, SamplingParams(), 0, adapter=read), 0, 1),))

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(placed, "_low_rank", fail)
    while not placed.ready(read):
        placed.wait()
    with pytest.raises(MemoryError, match="no room"):
        placed.model_for(step)
    monkeypatch.undo()
    assert not placed.ready(read), "another try"
    while not placed.ready(read):
        placed.wait()
    assert placed.num_placed == 1 and placed.model_for(step) is not None
    placed.close()


def test_sequences_without_an_adapter_pass_those_that_wait_for_the_place_of_one(folders: dict[str, Path]) -> None:
    """And no adapter that runs takes in more while another one waits: that one would wait for ever."""
    with engine(adapters=named(folders), max_loras=1, policy="fcfs") as loaded:
        assert isinstance(loaded.engine, Engine)
        for one in (call("a1", "a", max_tokens=40), call("b1", "b"), call("a2", "a"), call("plain")):
            loaded.engine.submit(one)
        ends = []
        while loaded.engine.has_work:
            ends += [event.id for event in loaded.engine.step() if isinstance(event, Completed)]
            loaded.engine.check()
        assert ends[0] == "plain"
        assert ends.index("a1") < ends.index("b1") < ends.index("a2")


def test_however_many_wait_for_the_place_of_an_adapter_others_pass_them() -> None:
    scripted = make_engine(adapters=Adapters(lambda name, folder, *, within: Adapter(name, folder)), max_loras=1)
    for name in "ab":
        scripted.adapters.load(name, name)
    calls = [call("a", "a", (1, 2)), *(call(f"b{number}", "b", (1, 2)) for number in range(2 * MAX_PASSED_OVER))]
    for one in (*calls, call("plain", "", (1, 2), max_tokens=1)):
        scripted.submit(one)
    assert [event.id for event in scripted.step() if isinstance(event, Completed)] == ["plain"]
    scripted.check()
    scripted.fail_all(RequestAborted("The test is over."))
    scripted.close()


def test_rows_of_one_adapter_lie_next_to_each_other(folders: dict[str, Path]) -> None:
    with engine(adapters=named(folders)) as loaded:
        assert isinstance(loaded.engine, Engine)
        for at, adapter in enumerate(("a", "", "b", "a", "", "b", "c")):
            loaded.engine.submit(call(f"{adapter}{at}", adapter, tuple(range(at, at + 9))))
        plan = loaded.engine._scheduler.plan()
        assert plan is not None
        assert [slot.sequence.call_id for slot in plan.slots] == ["a0", "a3", "1", "4", "b2", "b5", "c6"]


def test_a_namespace_cannot_name_an_adapter(folders: dict[str, Path]) -> None:
    with engine(adapters=named(folders)) as loaded:
        run(loaded, call("a", "a"))
        forged = Call("b", PROMPT, SamplingParams(max_tokens=1), namespace="\x1ea@0123456789abcdef")
        with pytest.raises(InvalidRequest, match="namespace must not contain"):
            loaded.engine.submit(forged)


def test_an_engine_without_adapters_computes_without_a_word_of_them() -> None:
    with engine(enable_lora=False) as loaded:
        assert isinstance(loaded.engine, Engine)
        runner = loaded.engine._runner
        assert isinstance(runner, TorchRunner) and runner.adapters is None
        with pytest.raises(InvalidRequest, match="start it with enable_lora"):
            loaded.engine.adapters.load("a", "/nowhere")
        with pytest.raises(UnknownModel):
            loaded.engine.submit(call("a", "a"))


class _Graphs:
    """Stands for captured steps: none fits, and a step with an adapter must not ask."""

    asked = 0

    def size_for(self, plan: StepPlan) -> None:
        assert all(slot.sequence.adapter is None for slot in plan.slots)
        self.asked += 1


def test_captured_steps_are_for_rows_without_adapters_alone(
    folders: dict[str, Path], expected: Callable[..., tuple[int, ...]]
) -> None:
    with engine(adapters=named(folders)) as loaded:
        assert isinstance(loaded.engine, Engine)
        runner, graphs = loaded.engine._runner, _Graphs()
        assert isinstance(runner, TorchRunner)
        runner.graphs = graphs  # type: ignore[assignment]  # all that a step asks of them
        assert texts(run(loaded, call("x"), call("a", "a"))) == {"x": expected(""), "a": expected("a")}
        assert graphs.asked == 0
        assert texts(run(loaded, call("x"))) == {"x": expected("")} and graphs.asked == 12


def change(**fields: object) -> Callable[[Path], None]:
    """Changes fields of an adapter's config."""

    def apply(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return apply


def tensors(edit: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    """Changes an adapter's tensors."""

    def apply(folder: Path) -> None:
        file = folder / "adapter_model.safetensors"
        held = safetensors.torch.load_file(file)
        edit(held)
        safetensors.torch.save_file(held, file)

    return apply


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BROKEN: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "No such file.*Only safetensors weights"),
    "pickled weights": (
        lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
        "adapter_model.safetensors can't be read: No such file",
    ),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "adapter_config.json can't be read"),
    "no json": (lambda folder: (folder / "adapter_config.json").write_text("{"), "must hold a JSON object"),
    "a list": (lambda folder: (folder / "adapter_config.json").write_text("[]"), "peft_type must be LORA, got None"),
    "cut short": (
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(
            (folder / "adapter_model.safetensors").read_bytes()[:-5]
        ),
        "truncated or corrupt",
    ),
    "no tensor at all": (tensors(lambda held: held.clear()), "holds no tensors"),
    "another method": (change(peft_type="IA3"), "peft_type must be LORA, got 'IA3'"),
    "dora": (change(use_dora=True), "'use_dora' = True is not implemented"),
    "biases": (change(bias="lora_only"), "'bias' = 'lora_only' is not implemented"),
    "whole modules": (change(modules_to_save=["lm_head"]), r"'modules_to_save' = \['lm_head'\] is not implemented"),
    "ranks by pattern": (change(rank_pattern={"q_proj": 2}), "'rank_pattern'"),
    "what nobody knows yet": (change(use_wonder=True), "'use_wonder' = True is not implemented"),
    "other base weights": (change(init_lora_weights="pissa_niter_4"), "the model's own weights were changed too"),
    "rank too high": (change(r=65), r"r must be a whole number in \[1, max_lora_rank=64\], got 65"),
    "rank of no kind": (change(r=True), "r must be a whole number"),
    "no alpha": (change(lora_alpha="much"), "lora_alpha must be a number"),
    "alpha of no float": (change(lora_alpha=10**400), "lora_alpha must be a number of at most 1e\\+06"),
    "endless alpha": (change(lora_alpha=float("inf")), "lora_alpha must be a number"),
    "another rank than said": (change(r=3), r"must have shape \[.*3.*\] for this model, got \[.*4.*\]"),
    "another base": (
        tensors(lambda held: held.update({FIRST: torch.zeros(4, 7)})),
        r"q_proj.lora_A.weight must have shape \[4, 64\] for this model, got \[4, 7\]",
    ),
    "whole numbers": (
        tensors(lambda held: held.update({FIRST: torch.zeros(4, 64, dtype=torch.int8)})),
        "is stored as torch.int8; supported are float32, float16, bfloat16",
    ),
    "one half": (tensors(lambda held: held.pop(FIRST)), "q_proj of layer 0 has lora_B alone; both A and B are needed"),
    "another module": (
        tensors(lambda held: held.update({"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)})),
        "lm_head.lora_A.weight can't be applied: served are lora_A and lora_B of q_proj, k_proj",
    ),
    "a layer more": (
        tensors(lambda held: held.update({FIRST.replace("layers.0", "layers.2"): torch.zeros(4, 64)})),
        "can't be applied: .* in layers 0 to 1",
    ),
    "many strangers": (
        tensors(lambda held: held.update({f"stranger.{at}": torch.zeros(1) for at in range(9)})),
        "stranger.0, stranger.1, stranger.2 and 6 more can't be applied",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_an_adapter_cannot_be_served_for_is_said(case: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "x", SHAPE)
    assert read_adapter("x", str(folder), SHAPE, 64).scale == 4.0
    spoil, message = BROKEN[case]
    spoil(folder)
    with pytest.raises(ModelError, match=message) as refused:
        read_adapter("x", str(folder), SHAPE, 64)
    assert len(str(refused.value)) < 1000


def test_no_more_is_read_than_an_adapter_of_the_highest_rank_can_have(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "x", SHAPE)
    (folder / "adapter_model.safetensors").write_bytes(bytes(2**24 + 4 * largest_adapter(SHAPE, 4) + 1))
    with pytest.raises(ModelError, match="more than an adapter of the largest rank allowed here can have"):
        read_adapter("x", str(folder), SHAPE, 4)
    with pytest.raises(ModelError, match="must be a folder with adapter_config"):
        read_adapter("x", str(tmp_path / "nothing"), SHAPE, 4)


def test_nothing_is_read_from_outside_of_the_folders_named_wherever_links_lead(
    tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, within = tmp_path / "root", (str(tmp_path / "other"), str(tmp_path / "root"))
    folder = write_adapter(root / "deep" / "er", SHAPE)
    (root / "link").symlink_to(folder)
    (root / "out").symlink_to(folders["a"])
    mixed, leaking = root / "mixed", root / "leaking"
    for made, weights in ((mixed, folder), (leaking, folders["a"])):
        made.mkdir()
        (made / "adapter_config.json").symlink_to(folder / "adapter_config.json")
        (made / "adapter_model.safetensors").symlink_to(weights / "adapter_model.safetensors")
    for good in (folder, root / "link", mixed):
        assert read_adapter("x", str(good), SHAPE, 64, within=within).scale == 4.0
    for bad, file in ((root / "out", "adapter_config.json"), (leaking, "adapter_model.safetensors"), (folders["a"], "")):
        with pytest.raises(ModelError, match=f"{file} leads out of the folders"):
            read_adapter("x", str(bad), SHAPE, 64, within=within)
    monkeypatch.setattr("os.path.realpath", lambda path, **_: str(path))  # a link that came after it was looked for
    for bad in (root / "link", mixed):
        with pytest.raises(ModelError, match="can't be read"):
            read_adapter("x", str(bad), SHAPE, 64, within=within)


def test_a_pipe_in_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "adapter_config.json")
    with pytest.raises(ModelError, match=r"adapter_config\.json must be a regular file"):
        read_adapter("x", str(tmp_path), SHAPE, 64)


def test_a_damaged_adapter_ends_the_start_and_a_name_must_be_one(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="must be a folder"), engine(adapters={"x": str(tmp_path / "nothing")}):
        pass
    for name in ("", "two\nlines", "x" * 300):
        with pytest.raises(InvalidRequest, match="1 to 256 printable characters"), engine(adapters={name: str(folders["a"])}):
            pass


def test_digests_tell_contents_and_factors_apart(folders: dict[str, Path], tmp_path: Path) -> None:
    read = {name: read_adapter("x", str(folder), SHAPE, 64) for name, folder in folders.items()}
    again = read_adapter("x", str(folders["a"]), SHAPE, 64)
    other = read_adapter("x", str(write_adapter(tmp_path, SHAPE, seed=0, alpha=8.0)), SHAPE, 64)
    assert again.identity == read["a"].identity
    assert len({each.identity for each in (*read.values(), other)}) == 4
    assert isinstance(again, LoraAdapter) and replace(again, name="y").identity != again.identity
