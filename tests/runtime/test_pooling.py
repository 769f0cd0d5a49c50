"""Vectors of prompts: the mean of all hidden states or the last one, however the prompt is cut, batched or cached."""

from collections.abc import Iterator

import pytest
import torch

from branchpoint.runtime.attention import CpuAttention
from branchpoint.runtime.batch import build_batch
from branchpoint.runtime.build import LoadedEngine, build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.errors import CapacityError, InvalidRequest
from branchpoint.runtime.logprobs import WantedRow
from branchpoint.runtime.messages import Call, Completed, Event, ScoreCall, Scored
from branchpoint.runtime.plan import Slot, StepPlan
from branchpoint.runtime.pooled import Pooled
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.sequence import Sequence
from branchpoint.runtime.weights.loader import LoadedModel, load_model

CPU = torch.device("cpu")
CONFIG = EngineConfig(model="dummy:llama", threads=1, seed=1, num_pages=64, page_size=4, max_batch_tokens=7)
PROMPT = tuple(range(10, 41))
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(CONFIG, CPU)


@pytest.fixture
def built() -> Iterator[LoadedEngine]:
    ready = build_engine(CONFIG)
    yield ready
    ready.engine.close()
    ready.close()


def hidden_states(loaded: LoadedModel, prompt: tuple[int, ...]) -> torch.Tensor:
    """All at once, by the model alone."""
    attention = CpuAttention(loaded.config, 64, 4, loaded.kv_dtype, CPU)
    sequence = Sequence("x", 0, list(prompt), len(prompt), GREEDY, 0, pages=list(range(16)))
    batch = build_batch(StepPlan((Slot(sequence, 0, len(prompt)),)), 4, CPU)
    attention.plan(batch)
    with torch.inference_mode():
        return loaded.model.forward(batch.tokens, batch.positions, attention).float()


def run(engine: Engine, *calls: Call | ScoreCall) -> dict[str, Event]:
    for call in calls:
        engine.submit(call)
    events = list[Event]()
    while engine.has_work:
        events += engine.step()
        engine.check()
    return {event.id: event for event in events if isinstance(event, Completed | Scored)}


def test_vectors_are_the_models_hidden_states_beside_other_calls(built: LoadedEngine, loaded: LoadedModel) -> None:
    engine = built.engine
    assert isinstance(engine, Engine)
    states = hidden_states(loaded, PROMPT)
    for again in range(2):  # the second time from the cache, where that is allowed
        ended = run(
            engine,
            Call("text", PROMPT[:9], SamplingParams(temperature=0.0, max_tokens=6, logprobs=1)),
            ScoreCall("mean", PROMPT, (), pooling="mean"),
            ScoreCall("last", PROMPT, (), pooling="last"),
            ScoreCall("score", PROMPT[:5], ((3, 4),)),
        )
        assert isinstance(ended["text"], Completed)
        assert isinstance(ended["score"], Scored) and len(ended["score"].logprobs[0]) == 2 and not ended["score"].vector
        for name, expected in {"mean": states.mean(0), "last": states[-1]}.items():
            found = ended[name]
            assert isinstance(found, Scored) and found.logprobs == () and found.usage.prompt_tokens == len(PROMPT)
            assert found.vector == pytest.approx(expected.tolist(), abs=1e-4), (name, again)
    assert isinstance(ended["last"], Scored) and ended["last"].usage.cached_tokens > 0
    assert isinstance(ended["mean"], Scored) and ended["mean"].usage.cached_tokens == 0, "a mean needs every state"


def test_one_token_is_its_own_mean(built: LoadedEngine, loaded: LoadedModel) -> None:
    assert isinstance(built.engine, Engine)
    (found,) = run(built.engine, ScoreCall("x", (9,), (), pooling="mean")).values()
    assert isinstance(found, Scored) and found.vector == pytest.approx(hidden_states(loaded, (9,))[0].tolist(), abs=1e-4)


def test_what_cant_be_pooled_is_refused(built: LoadedEngine) -> None:
    for call, error in (
        (ScoreCall("x", (1,), ((2,),), pooling="mean"), InvalidRequest),
        (ScoreCall("x", (), (), pooling="last"), InvalidRequest),
        (ScoreCall("x", (10**6,), (), pooling="last"), InvalidRequest),
        (ScoreCall("x", (1,) * 3000, (), pooling="last"), CapacityError),
    ):
        with pytest.raises(error):
            built.engine.submit(call)


def test_states_that_arent_finite_fail_their_call_only() -> None:
    bad, good = (Sequence(name, 0, [1, 2], 1, GREEDY, 0, pooled=True) for name in "bg")
    hidden = torch.tensor([[1.0, float("nan")], [1.0, 2.0]])
    pooled = Pooled([WantedRow(bad, 0, False), WantedRow(good, 0, False)], hidden)
    first, second = pooled.merged([])
    assert "unusable" in (first.error or "") and second.hidden is not None and second.hidden.tolist() == [1.0, 2.0]


def test_a_prompt_as_long_as_the_pool_gets_its_vector(built: LoadedEngine) -> None:
    capacity = CONFIG.page_size * (CONFIG.num_pages or 0)
    built.engine.submit(ScoreCall("x", tuple(10 + place % 30 for place in range(capacity)), (), pooling="mean"))
    events = [event for _ in range(2 * capacity) for event in built.engine.step()]
    assert [type(event) for event in events] == [Scored]
