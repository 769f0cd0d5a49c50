"""What the runner sees of a model, and what a model sees of attention. Models never see pages.

`decoder.Decoder` implements `Model`; the runner hands `forward` an attention that already knows the step's plan.
"""

from typing import Protocol

from torch import Tensor

from branchpoint.runtime.models.config import ModelConfig

__all__ = ["LayerAttention", "Model"]


class LayerAttention(Protocol):
    """Attention of one planned step."""

    def forward(self, layer_index: int, q: Tensor, kv: Tensor) -> Tensor:
        """Store kv and let q [T, Hq, D] attend; returns [T, Hq, D], of the cache's dtype. Rope is applied already.

        kv [T, 2 Hkv, D] holds the heads of the keys, then those of the values: they lie so in the projection, and are stored so.
        """


class Model(Protocol):
    """A decoder with its weights."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def forward(self, tokens: Tensor, positions: Tensor, attention: LayerAttention) -> Tensor:
        """Tokens and positions int64 [T] to normed hidden states [T, hidden_size]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden_size] to float32 [R, vocabulary_size]."""
