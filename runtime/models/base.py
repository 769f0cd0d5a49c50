"""What the runner sees of a model, and what a model sees of attention. Models never see pages.

`decoder.Decoder` implements `Model`; the runner hands `forward` an attention that already knows the step's plan.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from branchpoint.runtime.models.config import ModelConfig

__all__ = ["LayerAttention", "Model", "Rotation"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a step does to the heads of q and k in each layer: `eps` of their norm, where a layer has one, then `cos` and `sin`.

    Cos and sin are those of `kernels.operations`, for the step's tokens; `kv_heads` are the heads of keys, and those of values.
    """

    cos: Tensor
    sin: Tensor
    eps: float
    kv_heads: int


class LayerAttention(Protocol):
    """Attention of one planned step."""

    def forward(self, layer_index: int, qkv: Tensor, rotation: Rotation, norm: Tensor | None) -> Tensor:
        """Norm and turn the heads of q and k, store keys and values, let q attend; returns [T, Hq, D], of the cache's dtype.

        qkv [T, Hq + 2 Hkv, D] is the projection: heads of q, of keys, of values. `norm` [1, Hq + Hkv, D] are the norm weights of
        the heads of q and k, None where the model has none. These steps are one, since a GPU makes them in one pass.
        """


class Model(Protocol):
    """A decoder with its weights."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def forward(self, tokens: Tensor, positions: Tensor, attention: LayerAttention) -> Tensor:
        """Tokens and positions int64 [T] to normed hidden states [T, hidden_size]."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [T] to their embeddings [T, hidden_size]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden_size] to float32 [R, vocabulary_size]."""
