"""SmolLM2 out of its GGUF: exact in float32, and within its own quantisation error in the forms that `auto` may choose."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.layers.linear import LinearMethod, LinearSource, PlainLinear
from branchpoint.runtime.models.base import Model
from branchpoint.runtime.models.decoder import load_decoder
from branchpoint.runtime.parallel import Shard
from branchpoint.runtime.quant.bfloat16 import bfloat16_fast
from branchpoint.runtime.quant.measured import FORMS, Measured
from branchpoint.runtime.tokenizer import load_tokenizer
from branchpoint.runtime.weights.gguf import GgufCheckpoint
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.model_checks import expected_greedy, greedy, logits_of

CPU = torch.device("cpu")
PROMPTS = (
    "The capital of France is",
    "<|im_start|>user\nWrite one line about foxes.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
)


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(smollm2_path, 49152, (2,))
    return [list(tokenizer.encode(text)) for text in PROMPTS]


@pytest.fixture(scope="module")
def exact() -> Model:
    return load_model(EngineConfig(model="smollm2", cpu_weights="float32"), CPU).model


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> LlamaForCausalLM:
    """Transformers' model with the weights as transformers itself reads them."""
    shape = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads, rope_theta=100000.0, max_position_embeddings=8192))
    missing = model.load_state_dict(load_gguf_checkpoint(str(smollm2_path), True, model)["tensors"], strict=False).missing_keys
    assert missing == ["lm_head.weight"]  # tied
    model.tie_weights()
    return model.eval()


def test_greedy_tokens_equal_transformers_generation(exact: Model, reference: LlamaForCausalLM, prompts: list[list[int]]) -> None:
    for prompt in prompts:
        assert greedy(exact, prompt, 32) == expected_greedy(reference, prompt, 32)


def test_logits_equal_transformers(exact: Model, reference: LlamaForCausalLM, prompts: list[list[int]]) -> None:
    with torch.inference_mode():
        expected = reference(torch.tensor([prompts[1]])).logits[0]
    torch.testing.assert_close(logits_of(exact, prompts[1]), expected, atol=1e-3, rtol=1e-3)


class Shifted:
    """A `LinearMethod` of float weights moved within half a step of their blocks, as the file's rounding moved them."""

    def create(self, source: LinearSource) -> PlainLinear:
        blocks = source.four_bit()
        if blocks is None:
            return PlainLinear(source.dense(), None)
        noise = torch.rand(*blocks.scale.shape, 32, generator=torch.Generator().manual_seed(7)) - 0.5
        return PlainLinear(blocks.dense() + (noise * blocks.scale.unsqueeze(-1)).flatten(-2), None)


def relative_errors(exact: Model, other: Model, prompts: list[list[int]], kv_dtype: torch.dtype = torch.float32) -> Tensor:
    """Of each position's logits: each prompt fed at once, and the first one token by token too."""
    errors = []
    for prompt in prompts:
        expected, got = logits_of(exact, prompt), logits_of(other, prompt, kv_dtype=kv_dtype)
        errors.append((got - expected).norm(dim=1) / expected.norm(dim=1))
    expected, got = logits_of(exact, prompts[0]), logits_of(other, prompts[0], at_once=False, kv_dtype=kv_dtype)
    errors.append((got - expected).norm(dim=1) / expected.norm(dim=1))
    return torch.cat(errors)


@pytest.fixture(scope="module")
def quantisation_error(smollm2_path: Path, exact: Model, prompts: list[list[int]]) -> float:
    """The relative error of logits that Q4_1's rounding stands for in this file."""
    return float(relative_errors(exact, build(smollm2_path, Shifted()), prompts).mean())


def build(path: Path, method: LinearMethod) -> Model:
    checkpoint = GgufCheckpoint(path)
    with torch.inference_mode():
        return load_decoder(checkpoint, checkpoint.config, method, CPU, torch.float32, Shard())


@pytest.mark.parametrize(("form", "bound"), [("bfloat16", 0.04), ("int4", 0.04), ("int8", 0.25)])
def test_every_form_of_auto_stays_within_the_files_own_error(
    form: str, bound: float, smollm2_path: Path, exact: Model, prompts: list[list[int]], quantisation_error: float
) -> None:
    assert form in FORMS
    error = float(relative_errors(exact, build(smollm2_path, Measured((form,))), prompts).mean())
    assert error < bound
    assert error < quantisation_error


def test_keys_and_values_in_bfloat16_are_as_near_as_weights_in_it(exact: Model, prompts: list[list[int]]) -> None:
    assert float(relative_errors(exact, exact, prompts, torch.bfloat16).mean()) < 0.04


def test_auto_stays_within_the_files_own_error(exact: Model, prompts: list[list[int]], quantisation_error: float) -> None:
    chosen = load_model(EngineConfig(model="smollm2"), CPU)
    assert chosen.kv_dtype == (torch.bfloat16 if bfloat16_fast() else torch.float32)
    errors = relative_errors(exact, chosen.model, prompts, chosen.kv_dtype)
    assert float(errors.mean()) < 0.25
    assert float(errors.mean()) < quantisation_error
