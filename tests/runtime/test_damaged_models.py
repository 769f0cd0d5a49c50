"""Models that can't be run, through the whole of loading: whatever is wrong ends in a ModelError, and takes little memory."""

import json
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from branchpoint.runtime.build import build_engine
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.messages import Call, Completed, Failed, ScoreCall, Scored
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.tokenizer_files import _byte_spellings, from_bytes

HIDDEN, INNER, HEADS, HEAD = 32, 48, 2, 16
TOKENS = [*_byte_spellings(), "ab", "abc", "<|end|>", "<|start|>"]
VALUES = {
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": 1,
    "llama.attention.key_length": HEAD,
    "llama.attention.value_length": HEAD,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.eos_token_id": 258,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * 258 + [3, 3],
    "tokenizer.ggml.merges": ["a b", "ab c"],
    "tokenizer.ggml.add_bos_token": False,
}
SHAPES = {
    "token_embd.weight": (len(TOKENS), HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HEADS * HEAD, HIDDEN),
    "blk.0.attn_k.weight": (HEAD, HIDDEN),
    "blk.0.attn_v.weight": (HEAD, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
}


def write(path: Path, changed: dict[str, object], tensors: dict[str, np.ndarray] | None = None) -> Path:
    """A small GGUF with its tokenizer. A value of None leaves the field out."""
    writer = gguf.GGUFWriter(path, "llama")
    add: dict[type, Callable[[str, object], None]] = {
        bool: writer.add_bool,
        int: writer.add_int64,
        float: writer.add_float64,
        str: writer.add_string,
        list: writer.add_array,
    }  # type: ignore[dict-item]  # each takes its own type
    for key, value in {**VALUES, **changed}.items():
        if value is not None:
            add[type(value)](key, value)
    numbers = np.random.default_rng(0)
    drawn = {name: (numbers.normal(size=shape) * 0.1).astype(np.float32) for name, shape in SHAPES.items()}
    for name, array in {**drawn, **(tensors or {})}.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def load(path: Path) -> None:
    loaded = build_engine(EngineConfig(model=str(path), num_pages=16, threads=1))
    loaded.engine.close()
    loaded.close()


def peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


@pytest.mark.parametrize("seed", range(4))
def test_a_head_with_any_bytes_loads_or_is_a_model_error_of_little_memory(tmp_path: Path, seed: int) -> None:
    data = write(tmp_path / "whole.gguf", {}).read_bytes()
    head = data.index(b"blk.0.ffn_down.weight") + 64
    path = tmp_path / "changed.gguf"
    load(tmp_path / "whole.gguf")
    before, refused, rng = peak_megabytes(), 0, random.Random(seed)
    numbers = (0, 1, 2**20, 2**28, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
    for _ in range(100):
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(4, head)
            if rng.random() < 0.5:
                damaged[at] = rng.randrange(256)
            else:
                damaged[at : at + 8] = struct.pack("<Q", rng.choice(numbers))
        path.write_bytes(damaged[: rng.randrange(len(data))] if rng.random() < 0.1 else damaged)
        try:
            load(path)
        except ModelError:
            refused += 1
    assert refused > 50
    assert peak_megabytes() - before < 1024


NAN, INFINITE = float("nan"), float("inf")
ABSURD: list[dict[str, object]] = [
    *({"llama.context_length": value} for value in (0, -1, 2**30, 2**40, 2**62, "x", 1.5, None)),
    *(
        {f"llama.{name}": value}
        for name in ("embedding_length", "block_count", "feed_forward_length")
        for value in (0, -1, 2**40)
    ),
    *({"llama.attention.head_count": value} for value in (0, -2, 3, 2**40)),
    *({"llama.attention.head_count_kv": value} for value in (0, -1, 2**40)),
    *({"llama.rope.freq_base": value} for value in (0.0, -1.0, 1.0, NAN, INFINITE, "x")),
    *({"llama.attention.layer_norm_rms_epsilon": value} for value in (-1.0, NAN, INFINITE, 1e30)),
    *(
        {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": factor}
        for kind in ("linear", "yarn")
        for factor in (0.0, -1.0, NAN, INFINITE)
    ),
    *(
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0, f"llama.rope.scaling.{name}": value}
        for name, value in (
            ("original_context_length", 0),
            ("original_context_length", -5),
            ("yarn_beta_fast", 0.0),
            ("yarn_beta_slow", -5.0),
            ("yarn_beta_fast", NAN),
            ("attn_factor", 0.0),
            ("attn_factor", NAN),
        )
    ),
    *({f"tokenizer.ggml.{name}": value} for name in ("eos_token_id", "bos_token_id") for value in (-1, "x", 1.5, True)),
    {"tokenizer.ggml.eos_token_id": 2**40},
    {"tokenizer.ggml.eos_token_id": None},
    {"tokenizer.ggml.add_bos_token": "yes"},
    {"tokenizer.ggml.token_type": [1, 2]},
    {"tokenizer.ggml.merges": [1]},
    {"tokenizer.ggml.tokens": [1, 2]},
    {"tokenizer.chat_template": 5},
    {"llama.attention.scale": 3.0},
    {"llama.logit_scale": 2.0},
    {"llama.final_logit_softcapping": 30.0},
    {"llama.attention.causal": False},
]


@pytest.mark.parametrize("changed", ABSURD, ids=lambda changed: "-".join(f"{key}={value}" for key, value in changed.items()))
def test_absurd_metadata_is_a_model_error(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        load(write(tmp_path / "absurd.gguf", changed))


def test_neutral_metadata_is_taken(tmp_path: Path) -> None:
    neutral = {"llama.attention.scale": HEAD**-0.5, "llama.logit_scale": 1.0, "llama.final_logit_softcapping": 0.0}
    load(write(tmp_path / "neutral.gguf", {**neutral, "llama.attention.causal": True, "tokenizer.ggml.bos_token_id": 2**32 - 1}))


@pytest.mark.parametrize("name", ["rope_freqs.weight", "output_norm.weight", "blk.0.attn_q.weight"])
def test_whole_numbers_where_weights_belong_are_a_model_error(tmp_path: Path, name: str) -> None:
    shape = SHAPES.get(name, (HEAD // 2,))
    with pytest.raises(ModelError, match="I32"):
        load(write(tmp_path / "integers.gguf", {}, {name: np.zeros(shape, np.int32)}))


FIELDS = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "eos_token_id": 299,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder without its config.json."""
    path = tmp_path_factory.mktemp("folder")
    names = {
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "blk.0.attn_norm": "layers.0.input_layernorm",
        "blk.0.ffn_norm": "layers.0.post_attention_layernorm",
        "blk.0.attn_output": "layers.0.self_attn.o_proj",
        **{f"blk.0.attn_{part}": f"layers.0.self_attn.{part}_proj" for part in "qkv"},
        **{f"blk.0.ffn_{part}": f"layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")},
    }
    shapes = {**SHAPES, "token_embd.weight": (300, HIDDEN)}
    save_file(
        {f"model.{names[n.removesuffix('.weight')]}.weight": torch.ones(s) for n, s in shapes.items()}, path / "model.safetensors"
    )
    (path / "tokenizer.json").write_text(from_bytes(300, (299,)).json)
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return path


@pytest.mark.parametrize(
    "changed",
    [
        *({name: value} for name in FIELDS if name != "rope_theta" for value in (-1, 10**12, 10**30, 1.5, "seven")),
        *({"rope_theta": value} for value in (0, -1, 1.0, NAN, INFINITE, True, "x")),
        *({"rms_norm_eps": value} for value in (-1.0, NAN, INFINITE)),
        *({"rope_scaling": {"rope_type": "linear", "factor": value}} for value in (0, -1.0, NAN, "x")),
        *(
            {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 64, "factor": 2.0, **more}}
            for more in ({"original_max_position_embeddings": 0}, {"beta_fast": 0}, {"attention_factor": NAN}, {"beta_slow": -1})
        ),
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        {"sliding_window": 8},
        {"architectures": ["GPT2LMHeadModel"]},
    ],
    ids=str,
)
def test_an_absurd_config_is_a_model_error(folder: Path, changed: dict[str, object]) -> None:
    (folder / "config.json").write_text(json.dumps({**FIELDS, **changed}))
    with pytest.raises(ModelError):
        load(folder)


@pytest.mark.parametrize("name", ["num_attention_heads", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"])
def test_a_config_without_a_field_names_it(folder: Path, name: str) -> None:
    (folder / "config.json").write_text(json.dumps({key: value for key, value in FIELDS.items() if key != name}))
    with pytest.raises(ModelError, match=name):
        load(folder)


@pytest.mark.parametrize("text", ["", "[]", "null", "{" * 1000, "[" * 100_000, '{"a": "\ud800"', "\0"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_a_damaged_json_file_is_a_model_error(folder: Path, tmp_path: Path, name: str, text: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelError):
        load(tmp_path)


def test_advice_that_no_request_could_follow_is_none(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(FIELDS))
    advice = {"temperature": "hot", "top_k": -5, "top_p": 7.0, "min_p": 0.25, "repetition_penalty": True}
    (folder / "generation_config.json").write_text(json.dumps(advice))
    loaded = build_engine(EngineConfig(model=str(folder), num_pages=16, threads=1))
    loaded.engine.close()
    loaded.close()
    (folder / "generation_config.json").unlink()
    assert loaded.info.sampling_defaults == {"min_p": 0.25}


def test_weights_that_are_no_numbers_fail_their_calls_and_the_engine_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path / "nan.gguf", {}, {"output_norm.weight": np.full((HIDDEN,), np.nan, np.float32)})
    loaded = build_engine(EngineConfig(model=str(path), num_pages=16, threads=1))
    engine = loaded.engine
    for number, options in enumerate(
        ({}, {"temperature": 0.0}, {"prompt_logprobs": 1}, {"logprobs": 2, "n": 2}, {"max_tokens": 0})
    ):
        sampling = SamplingParams(**{"max_tokens": 3, **options})  # type: ignore[arg-type]  # options of one case
        engine.submit(Call(f"c{number}", (1, 2, 3), sampling))
    engine.submit(ScoreCall("scored", (1, 2), ((3, 4),)))
    ends: dict[str, object] = {}
    while engine.has_work:
        ends |= {event.id: event for event in engine.step() if isinstance(event, Completed | Scored | Failed)}
    failed = {name: end.message for name, end in ends.items() if isinstance(end, Failed)}
    assert failed.keys() == {"c0", "c1", "c2", "c3", "scored"} and isinstance(ends["c4"], Completed)
    assert all("logits are unusable" in message for message in failed.values())
    assert engine.stats().pages_held == 0
    engine.close()
    loaded.close()
