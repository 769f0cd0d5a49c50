"""What the model tests share: dense attention, our greedy generation, transformers' own, small GGUF files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from torch import Tensor
from transformers import PreTrainedModel

from branchpoint.kernels.reference import rope_write
from branchpoint.runtime.models.base import Model, Rotation


class DenseAttention:
    """Attention of one sequence over all that it was fed, without pages; `dtype` is that of the cache."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._dtype = dtype
        self._held: dict[int, Tensor] = {}

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        kv = torch.empty(len(qkv), 2 * rotation.kv_heads, qkv.shape[2], dtype=self._dtype)
        q = rope_write(qkv, rotation.cos, rotation.sin, norm, rotation.eps, kv, torch.arange(len(qkv))).to(self._dtype)
        if layer_index in self._held:
            kv = torch.cat((self._held[layer_index], kv))
        self._held[layer_index] = kv
        k, v = kv.chunk(2, 1)
        count, total = q.shape[0], k.shape[0]
        visible = torch.ones(count, total, dtype=torch.bool).tril(total - count)
        heads = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=visible, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)


def logits_of(model: Model, tokens: Sequence[int], *, at_once: bool = True, kv_dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits of every position, [T, vocabulary], of one forward pass or of one for each token."""
    attention, positions = DenseAttention(kv_dtype), torch.arange(len(tokens))
    steps = [positions] if at_once else list(positions.split(1))
    with torch.inference_mode():
        return torch.cat([model.logits(model.forward(torch.tensor(tokens)[step], step, attention)) for step in steps])


def greedy(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens after the prompt, one step at a time."""
    attention, tokens, out = DenseAttention(), torch.tensor(prompt), list[int]()
    start = 0
    with torch.inference_mode():
        for _ in range(count):
            hidden = model.forward(tokens, torch.arange(start, start + len(tokens)), attention)
            out.append(int(model.logits(hidden[-1:]).argmax()))
            start += len(tokens)
            tokens = torch.tensor(out[-1:])
    return out


def expected_greedy(reference: PreTrainedModel, prompt: Sequence[int], count: int) -> list[int]:
    """What transformers' own generation gives."""
    reference.generation_config.eos_token_id = None
    with torch.inference_mode():
        ids = torch.tensor([list(prompt)])
        out = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    if module in GGUF_NAMES:
        return f"{GGUF_NAMES[module]}.{leaf}"
    _, _, index, rest = module.split(".", 3)
    return f"blk.{index}.{GGUF_NAMES[rest]}.{leaf}"


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of q or k as llama.cpp's converter lays them for the Llama family: both halves of a head in turn."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    reference: PreTrainedModel,
    architecture: str,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    more: Mapping[str, float | int | str] | None = None,
) -> None:
    """Write a transformers model as GGUF, its matrices stored as `kind`."""
    config = reference.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    for key, value in (more or {}).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    tied = config.tie_word_embeddings
    for name, tensor in reference.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        values = tensor
        if architecture == "llama" and ".q_proj." in name:  # weights and biases
            values = interleaved(tensor, config.num_attention_heads)
        elif architecture == "llama" and ".k_proj." in name:
            values = interleaved(tensor, config.num_key_value_heads)
        array = np.ascontiguousarray(values.numpy())
        if array.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
