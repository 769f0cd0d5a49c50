"""The dense decoder that all supported families share: RMS norms, fused q/k/v, rope, grouped-query attention, gated SiLU.

Built from a checkpoint by `weights.loader`, run by the runner. At one token a call costs more than its arithmetic, so the
forward is written in few of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from branchpoint.kernels.operations import operations_for
from branchpoint.runtime.layers.linear import Linear, LinearMethod, LinearSource
from branchpoint.runtime.layers.rope import rotary_table
from branchpoint.runtime.models.base import LayerAttention, Rotation
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.parallel import Shard
from branchpoint.runtime.weights.checkpoint import Checkpoint, Stored, require

__all__ = ["Decoder", "load_decoder"]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer. Norm weights [hidden_size]; `qk_norm` [1, Hq + Hkv, D] holds each head's own norm weight."""

    input_norm: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
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

    def linear(self, prefix: str, outputs: dict[str, int], inputs: int, *, bias: bool) -> Linear:
        """The matrices of these names, one below the other."""
        parts = tuple(require(self.checkpoint, f"{prefix}.{name}.weight", (size, inputs)) for name, size in outputs.items())
        biases = [self.vector(f"{prefix}.{name}.bias", size) for name, size in outputs.items()] if bias else []
        return self.method.create(LinearSource(f"{prefix}.{'+'.join(outputs)}", parts, torch.cat(biases) if bias else None))

    def layer(self, index: int) -> _Layer:
        """Layer `index`."""
        config, prefix = self.config, f"model.layers.{index}"
        hidden, inner, q_size, kv_size = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        gate_up = {"gate_proj": inner, "up_proj": inner}
        return _Layer(
            input_norm=self.vector(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self.linear(attention, qkv, hidden, bias=config.attention_bias),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
            output=self.linear(attention, {"o_proj": hidden}, q_size, bias=config.output_bias),
            mlp_norm=self.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self.linear(mlp, gate_up, hidden, bias=config.mlp_bias),
            down=self.linear(mlp, {"down_proj": hidden}, inner, bias=config.mlp_bias),
        )

    def _qk_norm(self, prefix: str) -> Tensor:
        """The norm weights of q and k, one row for each head that they apply to: [1, Hq + Hkv, D]."""
        config = self.config
        q = self.vector(f"{prefix}.q_norm.weight", config.head_dim).expand(config.num_heads, -1)
        k = self.vector(f"{prefix}.k_norm.weight", config.head_dim).expand(config.num_kv_heads, -1)
        return torch.cat((q, k)).unsqueeze(0)
