"""The dense decoder that all supported families share: RMS norms, fused q/k/v, rope, grouped-query attention, gated SiLU.

Built from a checkpoint by `weights.loader`, run by the runner. At one token a call costs more than its arithmetic, so the
forward is written in few of them.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from branchpoint.kernels.operations import operations_for
from branchpoint.runtime.layers.linear import Linear, LinearMethod, LinearSource
from branchpoint.runtime.layers.rope import rotary_table
from branchpoint.runtime.models.base import LayerAttention, Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.linears import LayerLinear, LinearName, layer_linears
from branchpoint.runtime.parallel import Shard
from branchpoint.runtime.weights.checkpoint import Checkpoint, Stored, require

__all__ = ["Decoder", "load_decoder"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer. Norm weights [hidden_size]; `qk_norm` [1, Hq + Hkv, D] holds each head's own norm weight."""

    input_norm: Tensor
    qk_norm: Tensor | None
    mlp_norm: Tensor
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear


class Decoder:
    """A model with its weights; see `Model`. Made by `load_decoder`."""

    def __init__(
        self, config: ModelConfig, embedding: Tensor, layers: list[_Layer], norm: Tensor, head: Linear, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.dtype = dtype
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._operations = operations_for(embedding.device)
        self._cos, self._sin = rotary_table(config, embedding.device, dtype)

    def forward(self, tokens: Tensor, positions: Tensor, attention: LayerAttention) -> Tensor:
        """See `Model`."""
        config, operations = self.config, self._operations
        eps, head_dim, heads, kv_heads = config.rms_eps, config.head_dim, config.num_heads, config.num_kv_heads
        cos, sin = operations.rotation(self._cos, self._sin, positions, heads + kv_heads, kv_heads)
        rotation = Rotation(cos, sin, eps, kv_heads)
        x = self.embed(tokens)
        residual: Tensor | None = None
        for index, layer in enumerate(self._layers):
            if residual is None:
                x, residual = operations.rms_norm(x, layer.input_norm, eps), x
            else:
                x, residual = operations.add_rms_norm(x, residual, layer.input_norm, eps)
            qkv = layer.qkv.apply(x).to(self.dtype).view(-1, heads + 2 * kv_heads, head_dim)
            x = layer.output.apply(attention.forward(index, qkv, rotation, layer.qk_norm).reshape(-1, config.q_size))
            x, residual = operations.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down.apply(operations.silu_mul(layer.gate_up.apply(x)))
        assert residual is not None, "a model has at least one layer"
        return operations.add_rms_norm(x, residual, self._norm, eps)[0]

    def with_linears(self, change: Callable[[int, LinearName, Linear], Linear]) -> "Decoder":
        """A model that shares all weights with this one, and applies what `change` makes of each layer's linears."""
        model = copy(self)
        model._layers = [
            replace(
                layer,
                qkv=change(index, "qkv", layer.qkv),
                output=change(index, "output", layer.output),
                gate_up=change(index, "gate_up", layer.gate_up),
                down=change(index, "down", layer.down),
            )
            for index, layer in enumerate(self._layers)
        ]
        return model

    def embed(self, tokens: Tensor) -> Tensor:
        """See `Model`."""
        return functional.embedding(tokens, self._embedding).to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        return self._head.apply(hidden).float()


def load_decoder(
    checkpoint: Checkpoint, config: ModelConfig, method: LinearMethod, device: torch.device, dtype: torch.dtype, shard: Shard
) -> Decoder:
    """Take every tensor of a model of this shape out of the checkpoint. Raises ModelError naming what is missing or misshapen."""
    assert shard.size == 1, "a shard refuses other sizes when it is made"
    loader = _Loader(checkpoint, config, method, device, dtype)
    stored = require(checkpoint, "model.embed_tokens.weight", (config.vocabulary_size, config.hidden_size))
    embedding = stored.read().to(device)
    if config.tied:
        head = Stored("lm_head.weight", stored.shape, stored.kind, lambda: embedding, stored.read_blocks)
    else:
        head = require(checkpoint, "lm_head.weight", stored.shape)
    layers = [loader.layer(index) for index in range(config.num_layers)]
    norm = loader.vector("model.norm.weight", config.hidden_size)
    return Decoder(config, embedding, layers, norm, method.create(LinearSource("lm_head", (head,))), dtype)


@dataclass(frozen=True, slots=True)
class _Loader:
    """Takes layers out of a checkpoint."""

    checkpoint: Checkpoint
    config: ModelConfig
    method: LinearMethod
    device: torch.device
    dtype: torch.dtype

    def vector(self, name: str, size: int) -> Tensor:
        """A norm's weight or a bias [size]."""
        return require(self.checkpoint, name, (size,)).read().to(self.device, self.dtype)

    def linear(self, prefix: str, shape: LayerLinear) -> Linear:
        """The matrices of a layer's linear, one below the other."""
        module, outputs = f"{prefix}.{shape.module}", shape.outputs
        parts = tuple(require(self.checkpoint, f"{module}.{name}.weight", (size, shape.inputs)) for name, size in outputs.items())
        biases = [self.vector(f"{module}.{name}.bias", size) for name, size in outputs.items()] if shape.bias else []
        return self.method.create(LinearSource(f"{module}.{'+'.join(outputs)}", parts, torch.cat(biases) if biases else None))

    def layer(self, index: int) -> _Layer:
        """Layer `index`."""
        config, prefix = self.config, f"model.layers.{index}"
        return _Layer(
            input_norm=self.vector(f"{prefix}.input_layernorm.weight", config.hidden_size),
            qk_norm=self._qk_norm(f"{prefix}.self_attn") if config.qk_norm else None,
            mlp_norm=self.vector(f"{prefix}.post_attention_layernorm.weight", config.hidden_size),
            **{name: self.linear(prefix, shape) for name, shape in layer_linears(config).items()},
        )

    def _qk_norm(self, prefix: str) -> Tensor:
        """The norm weights of q and k, one row for each head that they apply to: [1, Hq + Hkv, D]."""
        config = self.config
        q = self.vector(f"{prefix}.q_norm.weight", config.head_dim).expand(config.num_heads, -1)
        k = self.vector(f"{prefix}.k_norm.weight", config.head_dim).expand(config.num_kv_heads, -1)
        return torch.cat((q, k)).unsqueeze(0)
