"""Learned heads: small networks that guess a model's next hidden states from its last ones, trained for that very model.

`EagleHead` is the one kind that is read (Li et al. 2024, EAGLE); another is a class that implements `Head`. Heads keep KV in
layers behind the model's own, in the same pages, and give hidden states out of which the model itself makes logits.
"""

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from branchpoint.kernels.operations import operations_for
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.layers.linear import Linear, LinearSource, Plain
from branchpoint.runtime.layers.rope import rotary_table
from branchpoint.runtime.models.base import LayerAttention, Model, Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.weights.checkpoint import Checkpoint, Stored, require
from branchpoint.runtime.weights.safetensors import SafetensorsCheckpoint

__all__ = ["EagleHead", "Head", "load_eagle_head"]


class Head(Protocol):
    """Guesses a model's hidden states. `num_layers` of attention keep KV, whose heads have the shape of the model's."""

    num_layers: int

    def forward(self, tokens: Tensor, positions: Tensor, before: Tensor, attention: LayerAttention) -> Tensor:
        """Hidden states [T, hidden_size] that the model may have at these tokens and positions, int64 [T].

        `before` [T, hidden_size] are those at the position before each: the model's, or what was guessed there; zeros at position
        0. Layers of `attention` are counted behind the model's.
        """


class EagleHead:
    """One decoder layer over a projection of a token's embedding beside the hidden state before it. Made by `load_eagle_head`.

    Positions are the tokens' own, where EAGLE's begin one later, at the second token: rotary positions tell only distances.
    """

    num_layers = 1

    def __init__(self, model: Model, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        config, method = model.config, Plain(device, dtype)
        hidden = config.hidden_size

        def vector(name: str, size: int) -> Tensor | None:
            if checkpoint.find(name) is None:
                return None
            return require(checkpoint, name, (size,)).read().to(device, dtype)

        def linear(name: str, outputs: dict[str, int], inputs: int) -> Linear:
            parts = tuple(require(checkpoint, f"{name}{part}.weight", (size, inputs)) for part, size in outputs.items())
            biases = [vector(f"{name}{part}.bias", size) for part, size in outputs.items()]
            present = [bias for bias in biases if bias is not None]
            if 0 < len(present) < len(biases):
                raise ModelError(f"{checkpoint.where}: all of {', '.join(outputs)} must have a bias, or none.")
            return method.create(LinearSource(name, parts, torch.cat(present) if present else None))

        inner = _rows(checkpoint, "layers.0.mlp.gate_proj.weight")
        attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
        self._model = model
        self._dtype = dtype
        self._joined = linear("", {"fc": hidden}, 2 * hidden)
        self._input_norm = vector("layers.0.input_layernorm.weight", hidden)
        self._qkv = linear(attention, {"q_proj": config.q_size, "k_proj": config.kv_size, "v_proj": config.kv_size}, hidden)
        self._output = linear(attention, {"o_proj": hidden}, config.q_size)
        self._mlp_norm = require(checkpoint, "layers.0.post_attention_layernorm.weight", (hidden,)).read().to(device, dtype)
        self._gate_up = linear(mlp, {"gate_proj": inner, "up_proj": inner}, hidden)
        self._down = linear(mlp, {"down_proj": hidden}, inner)
        self._operations = operations_for(device)
        self._cos, self._sin = rotary_table(config, device, dtype)

    def forward(self, tokens: Tensor, positions: Tensor, before: Tensor, attention: LayerAttention) -> Tensor:
        """See `Head`."""
        config, operations = self._model.config, self._operations
        heads, kv_heads, eps = config.num_heads, config.num_kv_heads, config.rms_eps
        cos, sin = operations.rotation(self._cos, self._sin, positions, heads + kv_heads, kv_heads)
        residual = self._joined.apply(torch.cat((self._model.embed(tokens), before.to(self._dtype)), dim=1))
        x = residual if self._input_norm is None else operations.rms_norm(residual, self._input_norm, eps)
        qkv = self._qkv.apply(x).view(-1, heads + 2 * kv_heads, config.head_dim)
        rotation = Rotation(cos, sin, eps, kv_heads)
        x = self._output.apply(attention.forward(config.num_layers, qkv, rotation, None).reshape(-1, config.q_size))
        x, residual = operations.add_rms_norm(x.to(self._dtype), residual, self._mlp_norm, eps)
        return residual + self._down.apply(operations.silu_mul(self._gate_up.apply(x)))


def load_eagle_head(folder: str, model: Model, device: torch.device, dtype: torch.dtype) -> EagleHead:
    """The head in a folder's model.safetensors, for `model`, whose embedding and output it shares.

    Raises ModelError naming what is missing, or has another shape than fits the model.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise ModelError(f"draft_head must name a folder with an EAGLE head in model.safetensors, got {folder!r:.200}.")
    with torch.inference_mode():
        return EagleHead(model, _Renamed(SafetensorsCheckpoint(path, model.config)), device, dtype)


def _rows(checkpoint: Checkpoint, name: str) -> int:
    """How many outputs a matrix has."""
    stored = checkpoint.find(name)
    if stored is None:
        raise ModelError(f"{checkpoint.where}: the tensor {name} is missing; expected an EAGLE head (fc, and layers.0).")
    return stored.shape[0]


class _Renamed:
    """A checkpoint whose names may begin with `model.`, as some that export heads write them."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def config(self) -> ModelConfig:
        """See `Checkpoint`."""
        return self._checkpoint.config

    @property
    def where(self) -> str:
        """See `Checkpoint`."""
        return self._checkpoint.where

    def find(self, name: str) -> Stored | None:
        """See `Checkpoint`."""
        return self._checkpoint.find(name) or self._checkpoint.find(f"model.{name}")
