"""Tiny random models of every family give transformers' logits and its greedy tokens, exactly."""

from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.models.registry import FAMILIES
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.model_checks import DenseAttention, expected_greedy, greedy, logits_of

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-all-heads": ("llama", {"num_key_value_heads": 4}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama-llama3": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}}),
    "llama-yarn": ("llama", {"rope_parameters": {**YARN, "rope_theta": 10000.0}}),
    "llama-yarn-factor": (
        "llama",
        {"rope_parameters": {**YARN, "rope_theta": 10000.0, "attention_factor": 0.8, "beta_fast": 16}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-wide-heads": ("mistral", {"sliding_window": None, "head_dim": 32}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3-one-kv-head": ("qwen3", {"num_key_value_heads": 1, "head_dim": 32}),
}


def tiny(case: str) -> PreTrainedModel:
    """A random model whose biases and norms are random too."""
    name, more = CASES[case]
    make_config, make_model = CLASSES[name]
    torch.manual_seed(sum(map(ord, case)))
    shape = SHAPE if name != "qwen2" else {key: value for key, value in SHAPE.items() if key != "head_dim"}
    model: PreTrainedModel = make_model(make_config(**{**shape, **more}))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def load(folder: Path, **options: object) -> Model:
    return load_model(EngineConfig(model=str(folder), **options), torch.device("cpu")).model  # type: ignore[arg-type]  # test options


@pytest.mark.parametrize("case", CASES)
def test_tiny_model_gives_transformers_logits_and_greedy_tokens(case: str, tmp_path: Path) -> None:
    reference = tiny(case)
    reference.save_pretrained(tmp_path)
    model = load(tmp_path)
    generator = torch.Generator().manual_seed(1)
    for length in (1, 7, 40):
        prompt = torch.randint(3, 160, (length,), generator=generator).tolist()
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(logits_of(model, prompt), expected, atol=2e-5, rtol=2e-5)
        assert greedy(model, prompt, 64) == expected_greedy(reference, prompt, 64)


def test_chunks_of_a_prompt_give_the_logits_of_the_whole(tmp_path: Path) -> None:
    tiny("qwen3").save_pretrained(tmp_path)
    model, tokens = load(tmp_path), torch.arange(3, 43)
    attention, pieces = DenseAttention(), list[torch.Tensor]()
    with torch.inference_mode():
        for part in tokens.split([1, 17, 5, 17]):
            start = sum(len(piece) for piece in pieces)
            pieces.append(model.logits(model.forward(part, torch.arange(start, start + len(part)), attention)))
    torch.testing.assert_close(torch.cat(pieces), logits_of(model, tokens.tolist()), atol=2e-5, rtol=2e-5)


def test_bfloat16_runs_and_stays_near_float32(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    exact, rounded = (logits_of(load(tmp_path, dtype=dtype), [3, 4, 5, 6]) for dtype in ("float32", "bfloat16"))
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() / exact.norm() < 0.05


def test_fields_a_config_leaves_out_get_transformers_own_defaults() -> None:
    classes = {"LlamaForCausalLM": LlamaConfig, "MistralForCausalLM": MistralConfig, "Qwen2ForCausalLM": Qwen2Config}
    classes["Qwen3ForCausalLM"] = Qwen3Config
    for family in FAMILIES:
        for architecture, defaults in family.huggingface.items():
            config = classes[architecture]().to_dict()
            assert {name: config[name] for name in defaults} == defaults
            assert config["rms_norm_eps"] == 1e-6
            assert config["tie_word_embeddings"] is False
            assert config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
