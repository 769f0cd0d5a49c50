"""Reads a GGUF file's metadata into a `ModelConfig`.

Called by `weights.gguf` with the file's header; keys are those of ggml's docs/gguf.md, under the architecture's name.
"""

import math
from dataclasses import replace

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.config import ModelConfig, RopeScaling
from branchpoint.runtime.models.family import Family
from branchpoint.runtime.models.registry import family_of_gguf
from branchpoint.runtime.weights.gguf_header import Header

__all__ = ["config_from"]

_NEUTRAL: dict[str, tuple[float, ...]] = {
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
}
"""Numbers of other architectures that change the arithmetic, with the values that don't (0 is llama.cpp's "not there")."""
_NO_TOKEN = 2**32 - 1  # llama.cpp's -1


class _Keys:
    """Metadata fields under one architecture's prefix."""

    def __init__(self, header: Header, architecture: str, where: str) -> None:
        self.metadata = header.metadata
        self.architecture = architecture
        self.where = where

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if isinstance(value, tuple) and len(set(value)) == 1:
            value = value[0]  # one number for each layer, all equal
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.where}: the field {self.architecture}.{name} must be a whole number, got {value!r}.")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.where}: the field {self.architecture}.{name} must be a number, got {value!r}.")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self.metadata.get(f"{self.architecture}.{name}", default)
        if not isinstance(value, str):
            raise ModelError(f"{self.where}: the field {self.architecture}.{name} must be a string, got {value!r}.")
        return value


def config_from(header: Header, where: str, factors: tuple[float, ...]) -> tuple[ModelConfig, Family]:
    """The model's shape and its family. `factors` are the file's own rope divisors, if any. Raises ModelError."""
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{where}: general.architecture must name the architecture, got {architecture!r}.")
    family = family_of_gguf(architecture, where)
    keys = _Keys(header, architecture, where)
    parts = header.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise ModelError(f"{where} is one of {parts} parts of a split GGUF; merge them first (llama.cpp's gguf-split --merge).")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{where}: the tensor token_embd.weight is missing; the file is not a whole model.")
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden // heads if heads > 0 else 0)
    context = keys.integer("context_length")
    _refuse_unknown_shapes(keys, head_dim, context)
    config = ModelConfig(
        architecture=family.name,
        hidden_size=hidden,
        num_layers=keys.integer("block_count"),
        num_heads=heads,
        num_kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=keys.integer("feed_forward_length"),
        vocabulary_size=embedding.shape[0],
        context_length=context,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope_theta=keys.number("rope.freq_base", 10000.0),
        rope_scaling=_scaling(keys, context, factors),
        tied="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        eos_token_ids=_ids(header, where, "eos_token_id", "eot_token_id", "eom_token_id"),
    )
    bos = _ids(header, where, "bos_token_id")
    return replace(config, bos_token_id=bos[0] if bos else None), family


def _refuse_unknown_shapes(keys: _Keys, head_dim: int, context: int) -> None:
    """Raise ModelError for what would silently change the arithmetic."""
    expected = {"attention.value_length": head_dim, "rope.dimension_count": head_dim, "expert_count": 0}
    for name, value in expected.items():
        got = keys.integer(name, value)
        if got != value:
            raise ModelError(f"{keys.where}: {keys.architecture}.{name} = {got} is not implemented (expected {value}).")
    usual = head_dim**-0.5 if head_dim > 0 else 0.0
    for name, neutral in {**_NEUTRAL, "attention.scale": (0.0, usual)}.items():
        given = keys.number(name, neutral[0])
        if not any(math.isclose(given, each, rel_tol=1e-6) for each in neutral):
            raise ModelError(
                f"{keys.where}: {keys.architecture}.{name} = {given:g} is not implemented (expected {neutral[-1]:g})."
            )
    if keys.metadata.get(f"{keys.architecture}.attention.causal", True) is not True:
        raise ModelError(f"{keys.where}: attention that isn't causal (an encoder) is not implemented.")
    window = keys.integer("attention.sliding_window", context)
    if 0 < window < context:
        raise ModelError(
            f"{keys.where}: sliding_window attention (window {window}) is not implemented; "
            "use a model whose layers attend to the whole context."
        )


def _scaling(keys: _Keys, context: int, factors: tuple[float, ...]) -> RopeScaling | None:
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.number("rope.scaling.factor", 1.0)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor=factor,
            original_context=keys.integer("rope.scaling.original_context_length", context),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=keys.number("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0),
        )
    if kind == "linear" and not factors:
        return RopeScaling("linear", factor=factor)
    if kind != "none":
        raise ModelError(f"{keys.where}: rope.scaling.type {kind!r} is not implemented; supported are none, linear and yarn.")
    return RopeScaling("factors", factors=factors) if factors else None


def _ids(header: Header, where: str, *names: str) -> tuple[int, ...]:
    """The token ids of the tokenizer's fields, those that are there. Raises ModelError for what is no id."""
    found = {name: header.metadata.get(f"tokenizer.ggml.{name}") for name in names}
    ids: dict[int, None] = {}
    for name, value in found.items():
        if value is None or value == _NO_TOKEN:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ModelError(f"{where}: tokenizer.ggml.{name} must be a token id, got {value!r:.40}.")
        ids[value] = None
    return tuple(ids)
