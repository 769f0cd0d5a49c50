"""Every option of an engine acts, or is refused by name; what no engine could be is refused before anything is loaded."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec
import pytest
import torch

from branchpoint.constrained.spec import Constraint, Regex
from branchpoint.errors import BranchpointError
from branchpoint.kernels.layout import plan_attention
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.capacity import gpu_budget
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.drafting.cost import StepCost
from branchpoint.runtime.errors import CapacityError, InvalidRequest, ModelError, Overloaded
from branchpoint.runtime.machine import usable_cores
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Hints
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.weights.dummy import dummy_config
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.adapters import write_adapter

BASE: dict[str, object] = {"model": "dummy:llama", "num_pages": 64, "threads": 1}
PROMPT = tuple(range(40))


def config(**options: object) -> EngineConfig:
    given = {**BASE, **options}
    return EngineConfig(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


@contextmanager
def built(**options: object) -> Iterator[LoadedEngine]:
    loaded = build_engine(config(**options))
    try:
        yield loaded
    finally:
        loaded.engine.close()
        loaded.close()


def ask(loaded: LoadedEngine, *calls: Call) -> list[Event]:
    for call in calls:
        loaded.engine.submit(call)
    events: list[Event] = []
    while loaded.engine.has_work:
        events += loaded.engine.step()
    return events


def call(name: str = "a", prompt: tuple[int, ...] = PROMPT, hints: Hints = Hints(), **options: object) -> Call:
    sampling = SamplingParams(**{"max_tokens": 1, "temperature": 0.0, "ignore_eos": True, **options})  # type: ignore[arg-type]
    return Call(name, prompt, sampling, hints=hints)


def said(loaded: LoadedEngine, **options: object) -> tuple[int, ...]:
    return tuple(
        token for event in ask(loaded, call(max_tokens=8, **options)) if isinstance(event, Delta) for token in event.tokens
    )


def ended(loaded: LoadedEngine, *calls: Call) -> list[str]:
    return [event.id for event in ask(loaded, *calls) if isinstance(event, Completed)]


def check_model() -> None:
    with built(model="dummy:qwen3") as loaded:
        assert (loaded.info.name, loaded.info.architecture) == ("dummy:qwen3", "qwen3")


def check_served_name() -> None:
    with built(served_name="mine") as loaded:
        assert loaded.info.name == "mine"


def check_dtype() -> None:
    for name, dtype in (
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("float32", torch.float32),
        ("auto", torch.float32),
    ):
        assert load_model(config(dtype=name), torch.device("cpu")).dtype == dtype
        with built(dtype=name) as loaded:
            assert len(said(loaded)) == 8


def check_device() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(InvalidRequest, match="CUDA"):
            build_engine(config(device="cuda"))
    with built(device="cpu") as loaded:
        assert said(loaded)


def check_cpu_weights() -> None:
    forms = {
        name: type(load_model(config(cpu_weights=name), torch.device("cpu")).model._head) for name in ("float32", "int8", "int4")
    }  # type: ignore[attr-defined]  # which form it is
    assert len(set(forms.values())) == 3
    with pytest.raises(InvalidRequest, match="cpu_weights"):
        build_engine(config(cpu_weights="int8", dtype="bfloat16"))


def check_threads() -> None:
    before = torch.get_num_threads()
    try:
        for threads in {1, usable_cores()}:
            load_model(config(threads=threads), torch.device("cpu"))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def check_context_length() -> None:
    with built(context_length=41) as loaded:
        assert loaded.info.context_length == 41
        assert len(said(loaded)) == 1
        with pytest.raises(CapacityError, match="the context holds 41"):
            loaded.engine.submit(call(prompt=(*PROMPT, 1)))


def check_page_size() -> None:
    with built(page_size=7) as loaded:
        assert loaded.info.page_size == 7
        ask(loaded, call())
        assert loaded.engine.stats().pages_cached == -(-40 // 7)


def check_num_pages() -> None:
    with built(num_pages=2) as loaded:
        assert loaded.info.num_pages == 2
        with pytest.raises(CapacityError, match="pool holds 32"):
            loaded.engine.submit(call())


def check_kv_memory_gib() -> None:
    with built(num_pages=None, kv_memory_gib=0.001, context_length=512) as loaded:
        assert loaded.info.num_pages == int(0.001 * 2**30) // (2 * 2 * 16 * 2 * 16 * 4)
    with pytest.raises(InvalidRequest, match="give one of them"):
        config(kv_memory_gib=1.0)


def check_gpu_memory_utilization() -> None:
    assert gpu_budget(total=100, free=70, utilization=0.9, activations=15) == 45
    with pytest.raises(InvalidRequest, match="gpu_memory_utilization must be above 0"):
        config(gpu_memory_utilization=1.5)


def check_kv_cache_dtype() -> None:
    for name, dtype in (("auto", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        with built(kv_cache_dtype=name) as loaded:
            assert loaded.engine._runner._attention.caches[0].dtype == dtype  # type: ignore[attr-defined]  # the type of the pool
            assert len(said(loaded)) == 8
    with pytest.raises(InvalidRequest, match="kv_cache_dtype 'fp8' needs a GPU"):
        build_engine(config(device="cpu", kv_cache_dtype="fp8"))


def check_host_kv_memory_gib() -> None:
    with built(num_pages=4, host_kv_memory_gib=0.001) as loaded:
        ask(loaded, call(), call("b", (7,) * 60))
        tree = loaded.engine.dump_cache().tree
        assert tree["num_host_slots"] == int(0.001 * 2**30) // (2 * 2 * 16 * 2 * 16 * 4)
        assert tree["num_host_pages"] > 0
    with pytest.raises(InvalidRequest, match="host_kv_memory_gib"):
        config(host_kv_memory_gib=-1.0)


def check_max_batch_tokens() -> None:
    with built(max_batch_tokens=10) as loaded:
        ask(loaded, call())
        assert loaded.engine.stats().steps == 4


def check_max_sequences() -> None:
    with built(max_sequences=2) as loaded:
        for number in range(5):
            loaded.engine.submit(call(f"c{number}", (number,), max_tokens=3))
        loaded.engine.step()
        assert (loaded.engine.stats().running, loaded.engine.stats().waiting) == (2, 3)


def check_max_step_seconds() -> None:
    for seconds, chunk in ((0.0, 150), (1e-9, 16)):
        with built(max_step_seconds=seconds, max_batch_tokens=256) as loaded:
            loaded.engine.submit(call("stream", max_tokens=64))
            loaded.engine.step()
            loaded.engine.submit(call("long", tuple(range(100, 250))))
            before = loaded.engine.stats().computed_tokens
            loaded.engine.step()
            assert loaded.engine.stats().computed_tokens - before == 1 + chunk
    with pytest.raises(InvalidRequest, match="max_step_seconds"):
        config(max_step_seconds=math.inf)


def check_max_queued() -> None:
    with built(max_queued=2) as loaded:
        loaded.engine.submit(call("a"))
        loaded.engine.submit(call("b"))
        with pytest.raises(Overloaded, match="max_queued=2"):
            loaded.engine.submit(call("c"))


def check_policy() -> None:
    calls = [call("new", (7,) * 40), call("sibling", (9,) * 40, Hints(program="p", path=(1,))), call("cached", (*PROMPT, 5, 6))]
    orders = {"fcfs": ["new", "sibling", "cached"], "lpm": ["cached", "new", "sibling"], "program": ["sibling", "cached", "new"]}
    for policy, order in orders.items():
        with built(policy=policy, max_sequences=1) as loaded:
            ask(loaded, call("warm", hints=Hints(program="p", path=(0,))))
            assert ended(loaded, *calls) == order


def check_radix_cache() -> None:
    for enabled in (True, False):
        with built(radix_cache=enabled) as loaded:
            ask(loaded, call("first"))
            (done,) = (event for event in ask(loaded, call("again")) if isinstance(event, Completed))
            assert done.usage.cached_tokens == (39 if enabled else 0)


def check_await_prefixes() -> None:
    for waits in (True, False):
        with built(await_prefixes=waits) as loaded:
            ends = [event for event in ask(loaded, call("a"), call("b", n=2)) if isinstance(event, Completed)]
            assert sorted(event.usage.prefilled_tokens for event in ends) == ([1, 40] if waits else [40, 40])


def check_shared_attention() -> None:
    for enabled in (True, False):
        with patch("branchpoint.runtime.attention.plan_attention", wraps=plan_attention) as planned:
            with built(shared_attention=enabled) as loaded:
                ask(
                    loaded,
                    call("first", PROMPT * 5),
                    call("second", PROMPT * 5, max_tokens=3),
                    call("third", PROMPT * 5, max_tokens=3),
                )
            assert {each.kwargs["share"] for each in planned.call_args_list} == {enabled}


def check_grammar_workers() -> None:
    for workers in (1, 3):
        before = set(threading.enumerate())
        with built(grammar_workers=workers) as loaded:
            compiler = loaded.compiler
            assert compiler is not None
            for future in [compiler.compile(Regex(f"[a-z]{{{count}}}")) for count in range(1, 9)]:
                future.result(timeout=30)
            started = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("grammar")]
            assert len(started) == workers


def drafted(constraint: Constraint | None = None, **options: object) -> tuple[int, int, int]:
    """Guesses and right ones when a call comes again, and the steps it took then."""
    with built(draft_adaptive=False, **options) as loaded:
        first = ask(loaded, msgspec.structs.replace(call("a", max_tokens=24), constraint=constraint))
        before = loaded.engine.stats().steps
        again = ask(loaded, msgspec.structs.replace(call("b", max_tokens=24), constraint=constraint))
        assert [event.tokens for event in again if isinstance(event, Delta)]
        assert _text(first) == _text(again)
        usage = again[-1].usage  # type: ignore[union-attr]
        return usage.drafted_tokens, usage.accepted_tokens, loaded.engine.stats().steps - before


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def check_drafters() -> None:
    assert drafted() == (0, 0, 24)
    for name in ("radix", "suffix"):
        guesses, right, steps = drafted(drafters=(name,))
        assert guesses >= right >= 18 and steps < 8, (name, guesses, right, steps)
    guesses, right, steps = drafted(Regex("(ab|cd)(ef|gh){9}"), drafters=("grammar",))
    assert guesses >= right >= 9
    for wrong in (("sufix",), ("ngram", "ngram")):
        with pytest.raises(InvalidRequest, match="different ones of grammar, ngram, suffix, radix, model, head"):
            config(drafters=wrong)


def check_draft_model() -> None:
    guesses, right, steps = drafted(drafters=("model",), draft_model="dummy:llama")
    assert guesses == right >= 18 and steps < 8
    guesses, right, _ = drafted(drafters=("model",), draft_model="dummy:qwen3")
    assert guesses > 4 * right
    for wrong in ({"draft_model": "dummy:llama"}, {"drafters": ("model",)}):
        with pytest.raises(InvalidRequest, match="give both or neither"):
            config(**wrong)


def check_draft_head() -> None:
    with pytest.raises(
        ModelError, match="draft_head must name a folder with an EAGLE head"
    ):  # tests/drafting/test_head.py has one
        build_engine(config(drafters=("head",), draft_head="/nowhere"))
    for wrong in ({"draft_head": "/nowhere"}, {"drafters": ("head",)}):
        with pytest.raises(InvalidRequest, match="give both or neither"):
            config(**wrong)


def check_draft_verify() -> None:
    pair = {"drafters": ("model",), "draft_model": "dummy:llama", "draft_adaptive": False}
    texts = []
    for verify in ("exact", "rejection"):
        with built(draft_verify=verify, **pair) as loaded:
            texts.append(said(loaded, temperature=1.0, seed=3))
            (counts,) = loaded.engine.stats().drafters
            assert counts.drafted == counts.accepted > 0  # equal models: every guess stands by either rule
    assert texts[0] != texts[1], "guesses that are to be rejected have noise of their own"
    with pytest.raises(InvalidRequest, match="it needs the drafter 'model' or 'head'"):
        config(draft_verify="rejection", drafters=("suffix",))


def check_draft_tokens() -> None:
    steps = {most: drafted(drafters=("radix",), draft_tokens=most)[2] for most in (1, 3, 23)}
    assert steps == {1: 12, 3: 6, 23: 1}


def check_draft_branches() -> None:
    found = [looked_up(draft_branches=width, ngram_max=2) for width in (1, 2)]
    assert found == [(1, 0), (2, 1)]  # of 60, which came last, and of 50 too
    with pytest.raises(InvalidRequest, match="draft_branches must be 1 beside the drafter 'head'"):
        config(draft_branches=2, drafters=("head",), draft_head="/nowhere")


def check_draft_adaptive() -> None:
    for adaptive in (True, False):
        with built(drafters=("radix",), draft_adaptive=adaptive, draft_tokens=16) as loaded:
            ask(loaded, call(max_tokens=24))
            loaded.engine._speculation._cost = StepCost({1: 1.0, 2: 1e6})  # type: ignore[attr-defined]  # dear second tokens
            ask(loaded, call(max_tokens=24, logit_bias=((7, 50.0),)))  # says something else: every guess is wrong
            (counts,) = loaded.engine.stats().drafters
            assert (counts.drafted, counts.accepted) == (0 if adaptive else 16, 0)


def looked_up(**options: object) -> tuple[int, int]:
    """Guesses, and right ones, where three tokens stood before 50 once, and the last two of them before 60 later."""
    prompt = (7, 1, 2, 50, 8, 1, 2, 60, 9, 7, 1, 2)
    with built(drafters=("ngram",), draft_adaptive=False, **options) as loaded:
        events = ask(loaded, call(prompt=prompt, max_tokens=2, logit_bias=((50, 100.0),)))
        usage = events[-1].usage  # type: ignore[union-attr]
        return usage.drafted_tokens, usage.accepted_tokens


def check_ngram_min() -> None:
    assert looked_up(ngram_min=3) == (1, 1)
    assert looked_up(ngram_min=4) == (0, 0)
    with pytest.raises(InvalidRequest, match="ngram_min must be at most ngram_max=4"):
        config(ngram_min=5)


def check_ngram_max() -> None:
    assert looked_up(ngram_max=3) == (1, 1)
    assert looked_up(ngram_max=2) == (1, 0)


def check_seed() -> None:
    texts = []
    for seed in (1, 1, 2):
        with built(seed=seed) as loaded:
            texts.append(said(loaded, temperature=1.0))
    assert texts[0] == texts[1] != texts[2]


def check_adapters() -> None:
    with pytest.raises(ModelError, match="must be a folder"):  # tests/runtime/test_lora.py has some
        build_engine(config(adapters={"a": "/nowhere"}))
    with pytest.raises(InvalidRequest, match="1 to 256 printable characters"):
        config(adapters={"": "/nowhere"})


def check_enable_lora() -> None:
    for enabled, refusal in ((False, InvalidRequest), (True, ModelError)):
        with built(enable_lora=enabled) as loaded, pytest.raises(refusal):
            loaded.engine.adapters.load("a", "/nowhere")


def check_max_loras() -> None:
    for most in (0, 2000):
        with pytest.raises(InvalidRequest, match="max_loras must be in"):
            config(max_loras=most)
    with built(enable_lora=True, max_loras=3) as loaded:
        assert loaded.engine._scheduler._max_adapters == 3  # type: ignore[attr-defined]  # tests/runtime/test_lora.py sees it act


def check_max_lora_rank() -> None:
    with TemporaryDirectory() as folder:
        write_adapter(Path(folder), dummy_config("llama"), rank=4)
        for most, taken in ((4, True), (3, False)):
            with (
                nullcontext() if taken else pytest.raises(ModelError, match="max_lora_rank=3"),
                built(adapters={"a": folder}, max_lora_rank=most),
            ):
                pass


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


@pytest.mark.parametrize("field", EngineConfig.__struct_fields__)
def test_every_field_acts(field: str) -> None:
    CHECKS[field]()


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("threads", "context_length", "num_pages") for value in (0, -1)),
        ("threads", 10**6),
        ("context_length", 10**9),
        ("num_pages", 2**31),
        ("num_pages", 10**30),
        *(("gpu_memory_utilization", value) for value in (0.0, -1.0, 1.01, NAN)),
        *(("kv_memory_gib", value) for value in (0.0, -1.0, NAN, INFINITE, 1e-9)),
        *((name, value) for name in ("page_size", "max_batch_tokens", "max_sequences", "max_queued") for value in (0, -5, 10**9)),
        *(("grammar_workers", value) for value in (0, -1, 10**6)),
        *(("seed", value) for value in (10**30, -(10**30))),
        *(("served_name", value) for value in ("", "two\nlines", "x" * 1000)),
    ],
)
def test_an_absurd_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=field) as refused:
        build_engine(config(**{"num_pages": None, "context_length": 128, field: value}))
    assert refused.value.param == field


def test_more_kv_memory_than_there_is_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"KV pool takes .* GiB are free; lower kv_memory_gib"):
        build_engine(config(num_pages=None, kv_memory_gib=1e6, max_sequences=2**16, page_size=128, max_queued=2))


@pytest.mark.parametrize("name", ["", ".", "/", "/dev/null", "\0", "a" * 5000, "dummy:", "dummy:nope", "~nobodyhere/x", "\ud800"])
def test_what_names_no_model_is_a_model_error(name: str) -> None:
    with pytest.raises(ModelError) as refused:
        build_engine(config(model=name))
    assert len(str(refused.value)) < 700


def test_a_pool_of_one_page_serves_what_fits() -> None:
    with built(num_pages=1, page_size=16) as loaded:
        (done,) = (event for event in ask(loaded, call(prompt=(1, 2, 3), max_tokens=100)) if isinstance(event, Completed))
        assert done.usage.completion_tokens == 13
        with pytest.raises(BranchpointError, match="pool holds 16 tokens"):
            loaded.engine.submit(call(prompt=PROMPT))
