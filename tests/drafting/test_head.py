"""The drafter `head`: a tiny EAGLE head, trained here, over the pages of a small random model."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from branchpoint.runtime.build import LoadedEngine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.messages import Call
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.models.head import load_eagle_head
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.weights.loader import load_model
from tests.drafting.test_model import pair, told
from tests.drafting.training import LETTERS, TrainedHead, before, texts_of, train_head
from tests.runtime.model_checks import DenseAttention

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(EngineConfig(model="dummy:llama", threads=1, seed=1, cpu_weights="float32"), CPU).model


@pytest.fixture(scope="module")
def trained(model: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    return train_head(model).save(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def untrained(model: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    return TrainedHead(model).save(tmp_path_factory.mktemp("untrained"))


def with_head(folder: str, **options: object) -> AbstractContextManager[LoadedEngine]:
    return pair("", drafters=("head",), draft_head=folder, draft_adaptive=False, draft_tokens=3, **options)


def test_the_loaded_head_computes_what_the_trained_one_does(model: Model, trained: str) -> None:
    tokens, hidden = texts_of(model, 1, seed=5)
    head = load_eagle_head(trained, model, CPU, torch.float32)
    with torch.inference_mode():
        got = head.forward(tokens[0], torch.arange(len(tokens[0])), before(hidden[0]), Behind(model))
        reference = TrainedHead(model)
        reference.load_state_dict(load_file(Path(trained) / "model.safetensors"))
        expected = reference(model.embed(tokens[0]).unsqueeze(0), before(hidden))[0]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


class Behind(DenseAttention):
    """Attention for layers behind the model's."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._first = model.config.num_layers

    def forward(self, layer_index: int, *rest: object) -> torch.Tensor:
        assert layer_index == self._first
        return super().forward(layer_index, *rest)  # type: ignore[arg-type]


SAMPLING = SamplingParams(
    max_tokens=60,
    temperature=0.0,
    ignore_eos=True,
    seed=5,
    presence_penalty=0.3,
    logit_bias=tuple((token, 90.0) for token in LETTERS),
)
CALL = Call("c", LETTERS * 2, SAMPLING)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trained_head_guesses_better_than_an_untrained_one_and_the_text_stays(
    trained: str, untrained: str, temperature: float
) -> None:
    call = structs.replace(CALL, sampling=structs.replace(SAMPLING, temperature=temperature))
    with pair("") as loaded:
        plain, _ = told(loaded, call)
    shares = []
    for folder in (untrained, trained):
        for page_size in (16, 1):
            with with_head(folder, page_size=page_size, num_pages=1024 // page_size) as loaded:
                tokens, share = told(loaded, call)
                assert all(each.failure is None for each in loaded.engine.stats().drafters)
            assert tokens == plain
            shares.append(share)
    assert shares[0] == shares[1] and shares[2] == shares[3], "pages make no difference to what is guessed"
    assert shares[2] > max(0.3, 1.3 * shares[0]), shares


def test_what_does_not_fit_is_refused_by_name(model: Model, trained: str, tmp_path: Path) -> None:
    tensors = load_file(Path(trained) / "model.safetensors")
    wrong = {
        "fc.weight must have shape": tensors | {"fc.weight": torch.zeros(64, 64)},
        "layers.0.mlp.gate_proj.weight is missing": {"fc.weight": tensors["fc.weight"]},
        "layers.0.self_attn.k_proj.weight must have shape": tensors | {"layers.0.self_attn.k_proj.weight": torch.zeros(64, 64)},
    }
    for message, held in wrong.items():
        save_file(held, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=message):
            load_eagle_head(str(tmp_path), model, CPU, torch.float32)
    with pytest.raises(ModelError, match="draft_head must name a folder"):
        load_eagle_head("/nowhere", model, CPU, torch.float32)
    save_file({f"model.{name}": value for name, value in tensors.items()}, tmp_path / "model.safetensors")
    load_eagle_head(str(tmp_path), model, CPU, torch.float32)


def test_its_kv_and_states_count_where_memory_is_divided(trained: str) -> None:
    options = {"num_pages": None, "kv_memory_gib": 0.01, "context_length": 512}
    with pair("", **options) as loaded:
        alone = loaded.info.num_pages
    with with_head(trained, **options) as loaded:
        layer = 16 * 2 * 2 * 16 * 4  # bytes of a page in one layer
        assert loaded.info.num_pages == alone * 2 * layer // (3 * layer + 16 * 64 * 4)
