"""The drafter `model`: on a scripted small model that reads its own pages, and on pairs of small random models."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from branchpoint.constrained.spec import Choice
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.draft_model import load_draft
from branchpoint.runtime.drafting.drawn import DrawnDrafter
from branchpoint.runtime.drafting.model import ModelSource
from branchpoint.runtime.drafting.shadow import catch_up, shadow_of
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.errors import CapacityError, ModelError
from branchpoint.runtime.messages import Call, Completed, Delta, Failed
from branchpoint.runtime.plan import RowResult, Slot, StepPlan, StepResult
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.loader import load_model
from tests.drafting.guessing import all_of
from tests.drafting.test_verify import RELAXED
from tests.runtime.expected import assert_as_expected
from tests.runtime.model_checks import logits_of
from tests.runtime.scripted import CONTEXT, EOS, VOCABULARY, Collected, Scripted, ScriptedRunner, collect, make_engine, run
from tests.runtime.strategies import any_call
from tests.runtime.test_engine_invariants import LONGEST, MOST, pools, setups


@dataclass
class SmallModel(ScriptedRunner):
    """Draws what the large one would, but for a share of `lies`."""

    lies: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def row(self, slot: Slot, at: int, state: int, mask: np.ndarray | None, number: int) -> RowResult:
        return super().row(slot, at, state + (self.rng.random() < self.lies), mask, number)


def source_of(
    small: ScriptedRunner, context: int = CONTEXT, max_tokens: int = 64, verifier: ScriptedRunner | None = None
) -> ModelSource:
    return ModelSource(small, context, max_tokens, verifier=verifier)


def drafter_of(source: ModelSource) -> DrawnDrafter:
    return DrawnDrafter("model", source, VOCABULARY, frozenset({EOS}))


@settings(RELAXED, max_examples=60)
@given(
    st.data(),
    pools,
    pools,
    setups,
    st.sampled_from([0.0, 0.2, 1.0]),
    st.integers(1, 8),
    st.sampled_from([3, 16, 64]),
    st.sampled_from([30, CONTEXT]),
)
def test_same_answers_and_no_page_lost_whatever_the_small_model_says(
    data: st.DataObject,
    pool: tuple[int, int],
    small_pool: tuple[int, int],
    setup: dict[str, object],
    lies: float,
    most: int,
    at_once: int,
    context: int,
) -> None:
    page_size, num_pages = pool
    calls = [data.draw(any_call(f"c{number}", LONGEST, MOST)) for number in range(data.draw(st.integers(1, 6)))]
    length = min(CONTEXT, num_pages * page_size)
    small = SmallModel(small_pool[1], small_pool[0], lies=lies, runs_ahead=data.draw(st.booleans()))
    runner = ScriptedRunner(num_pages, page_size, runs_ahead=data.draw(st.booleans()))
    source = source_of(small, context, at_once, runner)
    made = all_of(drafter_of(source), most, adaptive=data.draw(st.booleans()))
    engine = make_engine(runner, speculation=made, **setup)
    results = run(engine, *calls)
    for one in calls:
        assert_as_expected(one, results[one.id], length)
    assert all(each.failure is None for each in engine.stats().drafters)
    source.check()
    assert not source._shadows
    engine.close()


def steps_of(call: Call, small: ScriptedRunner, most: int = 4) -> tuple[int, int]:
    """Steps of the large model, and guesses that held."""
    large = ScriptedRunner(64, 4, runs_ahead=small.runs_ahead)
    engine = make_engine(large, speculation=all_of(drafter_of(source_of(small, verifier=large)), most))
    results = run(engine, call)
    assert_as_expected(call, results[call.id])
    engine.close()
    return len(large.plans), results[call.id].end.usage.accepted_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_agrees_makes_a_step_of_five_tokens(temperature: float) -> None:
    """Where its device needs nobody between passes, each is launched behind the one before, and computes the same."""
    call = Call("c", (1, 2, 3), SamplingParams(max_tokens=20, temperature=temperature, seed=4, ignore_eos=True))
    plain, ahead = ScriptedRunner(64, 4), ScriptedRunner(64, 4, runs_ahead=True)
    assert steps_of(call, plain) == steps_of(call, ahead) == (4, 16)
    assert [plan.num_tokens for plan in ahead.plans] == [plan.num_tokens for plan in plain.plans]
    assert (plain.num_ahead, ahead.num_ahead) == (0, 12), "three of four passes a step"
    looking_back = structs.replace(call, sampling=structs.replace(call.sampling, repetition_penalty=1.1))
    steps_of(looking_back, again := ScriptedRunner(64, 4, runs_ahead=True))
    assert again.num_ahead == 0


@dataclass
class Logged(SmallModel):
    """Writes into `log` what is launched and what is waited for; as `small` its launches fail from number `fails` on."""

    name: str = ""
    log: list[str] = field(default_factory=list)
    fails: int = 10_000

    def launch(self, plan: StepPlan, *before: Scripted) -> Scripted:
        if len(self.plans) >= self.fails:
            raise ValueError("The small model is ill.")
        self.log.append(f"{self.name} launched")
        step = super().launch(plan, *before)
        finish = step.finish

        def wait() -> StepResult:
            self.log.append(f"{self.name} awaited")
            return finish()

        step.finish = wait  # type: ignore[method-assign]
        return step


def logged(**small: object) -> tuple[Engine, Logged, Logged, ModelSource]:
    large = Logged(runs_ahead=True, name="large")
    draws = Logged(runs_ahead=True, name="small", log=large.log, **small)  # type: ignore[arg-type]
    source = source_of(draws, verifier=large)
    return make_engine(large, speculation=all_of(drafter_of(source), 4)), large, draws, source


FREE = [Call(f"c{at}", (1, at), SamplingParams(max_tokens=30 + at, seed=at, ignore_eos=True)) for at in range(3)]


def test_a_step_and_the_guesses_that_it_verifies_are_waited_for_at_once() -> None:
    engine, large, small, _ = logged(lies=0.3)
    for one, got in run(engine, *FREE).items():
        assert_as_expected(next(call for call in FREE if call.id == one), got)
    log = large.log
    assert small.num_ahead > 20 and sum(plan.sources != () for plan in large.plans) > 5
    for before, now in pairwise(log):
        assert now != "small awaited" or before in {"large awaited", now}, "no guess is waited for before its step is launched"
        assert now != "large awaited" or before == "large launched", "and that before anything else"
    engine.close()


@pytest.mark.parametrize("what", ["aborted", "failed", "ill", "broken"])
def test_who_ends_while_guesses_are_under_way_harms_no_other(what: str) -> None:
    engine, large, _, source = logged(fails=9 if what == "ill" else 10_000, poison=frozenset({2} if what == "broken" else ()))
    for call in FREE:
        engine.submit(call)
    results: dict[str, Collected] = {}
    collect(engine.step() + engine.step(), results)
    if what == "failed":
        large.fault = ValueError("The device stumbled.")
    collect(engine.step(), results)
    assert engine._ahead is not None and (what == "ill" or engine._ahead.plan.guesses is not None)
    if what == "aborted":
        engine.abort("c0")
    engine.submit(again := structs.replace(FREE[2], id="again"))
    while engine.has_work:
        collect(engine.step(), results)
        engine.check()
    source.check()
    assert [each.failure is None for each in engine.stats().drafters] == [what != "ill"]
    assert what == "ill" or not source._shadows
    whole = [call for call in (*FREE, again) if not isinstance(results[call.id].end, Failed)]
    assert len(whole) == {"aborted": 3, "failed": 2}.get(what, 4)
    for call in whole:
        assert_as_expected(call, results[call.id])
    engine.close()


def test_guesses_are_drawn_under_the_grammar() -> None:
    sets = Choice(("1,2", "3,4,5", "7", "6,8,9", "10,11", "2,4", "1,5"))
    steps, accepted = steps_of(Call("c", (1, 2), SamplingParams(max_tokens=20, temperature=1.0, seed=1), sets), ScriptedRunner())
    assert (steps, accepted) == (2, 5)


def test_only_what_is_new_is_computed_and_forks_share_their_prompt() -> None:
    small = ScriptedRunner(64, 4)
    engine = make_engine(ScriptedRunner(64, 4), speculation=all_of(drafter_of(source_of(small)), 2))
    sampling = SamplingParams(max_tokens=9, temperature=1.0, seed=2, ignore_eos=True, n=4)
    run(engine, Call("c", tuple(range(1, 25)), sampling))
    assert sum(plan.num_tokens for plan in small.plans) < 24 + 4 * (1 + 9 + 4)
    engine.close()


def test_what_was_foreseen_and_came_otherwise_is_computed_anew() -> None:
    sequence = Sequence("c", 0, [1, 2, 3, 4, 5], 2, SamplingParams(), seed=0)
    shadow = shadow_of(sequence, own_noise=False)
    shadow.num_computed = 5
    sequence.tokens[3:], sequence.mistaken = [7, 8, 9], 1  # a residue has refused 4, and others followed
    catch_up(shadow, sequence)
    assert (shadow.tokens, shadow.num_computed) == ([1, 2, 3, 7, 8, 9], 3)


def test_long_prompts_are_caught_up_with_in_chunks() -> None:
    small = ScriptedRunner(64, 4)
    source = source_of(small, max_tokens=8)
    engine = make_engine(ScriptedRunner(64, 4), speculation=all_of(drafter_of(source), 3))
    call = Call("c", tuple(range(1, 31)), SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))
    results = run(engine, call)
    assert_as_expected(call, results["c"])
    assert max(plan.num_tokens for plan in small.plans) <= 8
    assert results["c"].end.usage.accepted_tokens > 15  # type: ignore[union-attr]
    engine.close()


def write_config(folder: Path, **changes: object) -> str:
    """A dummy model of another shape: one layer of the default's two, unless told otherwise."""
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape | changes))
    return f"dummy:{folder}"


@contextmanager
def pair(draft_model: str, **options: object) -> Iterator[LoadedEngine]:
    given = {"model": "dummy:llama", "num_pages": 64, "threads": 1, "seed": 1, "cpu_weights": "float32"}
    if draft_model:
        given |= {"drafters": ("model",), "draft_model": draft_model, "draft_adaptive": False}
    given |= options
    loaded = build_engine(EngineConfig(**given))  # type: ignore[arg-type]
    try:
        yield loaded
    finally:
        loaded.engine.close()
        loaded.close()


WARM = Call("c", tuple(range(50)), SamplingParams(max_tokens=40, temperature=0.8, seed=5, ignore_eos=True))


def told(loaded: LoadedEngine, call: Call = WARM) -> tuple[tuple[int, ...], float]:
    """The tokens of `call`, and which share of the guesses for it was right."""
    loaded.engine.submit(call)
    tokens: list[int] = []
    while loaded.engine.has_work:
        for event in loaded.engine.step():
            if isinstance(event, Delta):
                tokens += event.tokens
            elif isinstance(event, Completed):
                return tuple(tokens), event.usage.accepted_tokens / max(1, event.usage.drafted_tokens)
    raise AssertionError("no end")


def test_equal_models_agree_on_every_draw_and_others_on_some(tmp_path: Path) -> None:
    shares = {}
    with pair("") as loaded:
        plain, _ = told(loaded)
    for name, model in {"same": "dummy:llama", "smaller": write_config(tmp_path), "ahead": "dummy:llama"}.items():
        with pair(model) as loaded:
            (drafter,) = loaded.engine._speculation._drafters  # type: ignore[attr-defined]
            for runner in (drafter._source._runner, loaded.engine._runner):  # type: ignore[attr-defined]
                runner.runs_ahead = name == "ahead"  # as on a GPU
            tokens, shares[name] = told(loaded)
        assert tokens == plain
    assert shares["same"] == shares["ahead"] == 1.0
    assert 0.0 < shares["smaller"] < 1.0


@pytest.mark.parametrize(("width", "token"), [(500, 499), (600, 511)])
def test_another_vocabulary_is_refused(tmp_path: Path, width: int, token: int) -> None:
    refusal = f"draft_model must have the model's vocabulary, but token {token} is"
    with pytest.raises(ModelError, match=refusal), pair(write_config(tmp_path, vocab_size=width)):
        pass


@pytest.mark.parametrize("width", [500, 600])
def test_logits_of_another_width_are_cut_or_filled_up(tmp_path: Path, width: int) -> None:
    config = EngineConfig(model="dummy:llama", threads=1, context_length=64)
    name = write_config(tmp_path, vocab_size=width)
    target, device = load_model(config, torch.device("cpu")), torch.device("cpu")
    own, fitted = load_model(structs.replace(config, model=name), device), load_draft(config, name, target, device)
    assert fitted.config.context_length == 64
    mine = logits_of(fitted.model, [1, 499, 3])
    assert mine.shape == (3, 512)
    common = min(width, 512)
    torch.testing.assert_close(mine[:, :common], logits_of(own.model, [1, 499, 3])[:, :common])
    assert (mine[:, common:] < -1e8).all()
    if width == 500:
        assert logits_of(fitted.model, [511]).shape == (1, 512)  # an id that only the target has


def test_the_draft_models_pool_counts_with_the_models() -> None:
    alone = {"num_pages": None, "kv_memory_gib": 0.01, "context_length": 512}
    with pair("", **alone) as loaded:
        pages = loaded.info.num_pages
    with pair("dummy:llama", **alone) as loaded:
        assert loaded.info.num_pages == pages // 2
    with pytest.raises(CapacityError, match="kv_memory_gib"), pair("dummy:llama", **alone | {"kv_memory_gib": 0.0003}):
        pass
