"""GGUF files: every supported type as the `gguf` package reads it, the Llama family's row order, and damaged files."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.weights.gguf import SUPPORTED_KINDS, GgufCheckpoint
from branchpoint.runtime.weights.gguf_header import read_header
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.model_checks import expected_greedy, greedy, logits_of, write_gguf

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
PROMPT = [5, 9, 2, 44, 17]
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def tiny(architecture: str = "llama", **more: object) -> PreTrainedModel:
    make_config, make_model = FAMILIES[architecture]
    torch.manual_seed(5)
    model: PreTrainedModel = make_model(make_config(**{**SHAPE, **more}))
    if architecture == "qwen2":
        model.config.head_dim = 16
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, tiny(), "llama")
    return path


def load(path: Path, **options: object):  # type: ignore[no-untyped-def]  # noqa: ANN201  # a test's helper
    return load_model(EngineConfig(model=str(path), **options), CPU)  # type: ignore[arg-type]  # test options


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_families_in_gguf_give_transformers_tokens(architecture: str, tied: bool, tmp_path: Path) -> None:
    reference, path = tiny(architecture, tie_word_embeddings=tied), tmp_path / "model.gguf"
    write_gguf(path, reference, architecture)
    loaded = load(path)
    assert loaded.config.tied == tied
    assert loaded.config.eos_token_ids == (2,)
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(loaded.model, PROMPT), expected, atol=2e-5, rtol=2e-5)
    assert greedy(loaded.model, PROMPT, 64) == expected_greedy(reference, PROMPT, 64)


@pytest.mark.parametrize(
    ("rope", "more"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
        ),
    ],
)
def test_rope_scaling_in_metadata(rope: dict[str, object], more: dict[str, float | int | str], tmp_path: Path) -> None:
    reference = tiny(rope_parameters={**rope, "rope_theta": 10000.0})
    write_gguf(tmp_path / "model.gguf", reference, "llama", more=more)
    assert greedy(load(tmp_path / "model.gguf").model, PROMPT, 40) == expected_greedy(reference, PROMPT, 40)


def test_llama_biases_are_put_in_order_with_their_rows(tmp_path: Path) -> None:
    reference = tiny(attention_bias=True, mlp_bias=True)
    write_gguf(tmp_path / "model.gguf", reference, "llama")
    assert greedy(load(tmp_path / "model.gguf").model, PROMPT, 40) == expected_greedy(reference, PROMPT, 40)


WRITABLE = (Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1)


@pytest.mark.parametrize("kind", WRITABLE, ids=lambda kind: kind.name)
def test_stored_types_read_as_the_package_reads_them(kind: Kind, tmp_path: Path) -> None:
    reference, path = tiny(), tmp_path / "model.gguf"
    write_gguf(path, reference, "llama", kind)
    checkpoint = GgufCheckpoint(path)
    for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"):
        stored = checkpoint.find(name)
        assert stored is not None
        assert stored.kind == kind.name
        original = reference.state_dict()[name].numpy()
        expected = dequantize(quantize(original, kind), kind)  # whole rows: their order doesn't change their values
        np.testing.assert_array_equal(stored.read().float().numpy(), expected)
        if stored.read_blocks is not None:
            np.testing.assert_array_equal(stored.read_blocks().dense().numpy(), expected)
    assert (checkpoint.find("lm_head.weight") is None) == reference.config.tie_word_embeddings


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K], ids=lambda kind: kind.name)
def test_k_quants_read_as_the_package_reads_them(kind: Kind, tmp_path: Path) -> None:
    rows, (block, size) = 64, gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 64, (rows, 256 // block * size), dtype=np.uint8)
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer, hidden=256, heads=4)
    writer.add_tensor("token_embd.weight", np.zeros((8, 256), np.float32))
    for name in ("blk.0.ffn_gate.weight", "blk.0.attn_q.weight"):
        writer.add_tensor(name, raw, raw_dtype=kind)
    finish(writer)
    checkpoint = GgufCheckpoint(path)
    expected = dequantize(raw, kind)
    gate, q = checkpoint.find("model.layers.0.mlp.gate_proj.weight"), checkpoint.find("model.layers.0.self_attn.q_proj.weight")
    assert gate is not None and q is not None
    np.testing.assert_array_equal(gate.read().numpy(), expected)
    undone = expected.reshape(4, 8, 2, 256).swapaxes(1, 2).reshape(64, 256)
    np.testing.assert_array_equal(q.read().numpy(), undone)


def add_shape(writer: gguf.GGUFWriter, hidden: int, heads: int) -> None:
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(64)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_every_supported_type_is_tried_here() -> None:
    tried = {kind.name for kind in WRITABLE} | {"F32", "Q4_K", "Q5_K", "Q6_K"}
    assert tried == set(SUPPORTED_KINDS)


def test_unsupported_type_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny(), "llama", Kind.Q5_0)
    with pytest.raises(ModelError, match=r"is stored as Q5_0; supported are F32"):
        load(tmp_path / "model.gguf")


def test_llama3_factors_in_a_tensor_divide_the_frequencies(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}
    reference = tiny(rope_parameters={**rope, "original_max_position_embeddings": 32})
    scaled = reference.model.rotary_emb.inv_freq
    plain = 500.0 ** -(torch.arange(0, 16, 2) / 16)
    path = tmp_path / "model.gguf"

    class WithFactors(gguf.GGUFWriter):
        def write_header_to_file(self, path: Path | None = None) -> None:
            self.add_tensor("rope_freqs.weight", (plain / scaled).numpy().astype(np.float32))
            super().write_header_to_file(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFWriter", WithFactors)
        write_gguf(path, reference, "llama")
    loaded = load(path)
    assert loaded.config.rope_scaling is not None
    assert loaded.config.rope_scaling.kind == "factors"
    assert greedy(loaded.model, PROMPT, 40) == expected_greedy(reference, PROMPT, 40)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"attention.sliding_window": 16}, "sliding_window"),
        ({"rope.dimension_count": 8}, "rope.dimension_count = 8 is not implemented"),
        ({"expert_count": 4}, "expert_count = 4 is not implemented"),
        ({"rope.scaling.type": "longrope"}, "'longrope' is not implemented"),
    ],
)
def test_metadata_that_is_not_implemented_is_refused_by_name(
    more: dict[str, float | int | str], message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "model.gguf", tiny(), "llama", more=more)
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "model.gguf")


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny(), "gemma2")
    with pytest.raises(ModelError, match="'gemma2' is not supported; supported are llama, qwen2, qwen3"):
        load(tmp_path / "model.gguf")


def test_missing_tensor_is_named_by_the_file(tmp_path: Path) -> None:
    reference, path = tiny(), tmp_path / "model.gguf"
    del reference.model.layers[1].mlp.down_proj
    write_gguf(path, reference, "llama")
    with pytest.raises(ModelError, match=r"model\.gguf: .*layers\.1\.mlp\.down_proj\.weight.* missing"):
        load(path)


def test_file_cut_anywhere_is_an_error_that_names_it(whole: Path, tmp_path: Path) -> None:
    data, path = whole.read_bytes(), tmp_path / "cut.gguf"
    for size in [0, 1, 3, 4, 7, 8, 20, *range(24, 2400, 61), len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            load(path)


def test_bytes_changed_in_the_head_never_raise_anything_else(whole: Path, tmp_path: Path) -> None:
    data, path = whole.read_bytes(), tmp_path / "changed.gguf"
    random = np.random.default_rng(11)
    refused = 0
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(4):
            damaged[int(random.integers(0, 2000))] = int(random.integers(0, 256))
        path.write_bytes(damaged)
        try:
            read_header(path)
            GgufCheckpoint(path)
        except ModelError:
            refused += 1
    assert refused > 100


def test_truncated_demo_model_names_the_tensor(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    with smollm2_path.open("rb") as file:
        path.write_bytes(file.read(60_000_000))
    with pytest.raises(ModelError, match=r"half\.gguf: the tensor 'blk\.\d+\.\w+\.weight' needs bytes .* truncated"):
        load(path)
