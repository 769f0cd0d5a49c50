"""What the runner sees of a model, and what a model sees of attention. Models never see pages.

`decoder.Decoder` implements `Model`; the runner hands `forward` an attention that already knows the step's plan.
"""

from typing import Protocol

from torch import Tensor

from branchpoint.runtime.models.config import ModelConfig

__all__ = ["LayerAttention", "Model"]


class LayerAttention(Protocol):
    """Attention of one planned step."""

    def forward(self, layer_index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [T, Hkv, D] and let q [T, Hq, D] attend; returns [T, Hq, D]. Rope is applied already."""


class Model(Protocol):
    """A decoder with its weights."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    def forward(self, tokens: Tensor, positions: Tensor, attention: LayerAttention) -> Tensor:
        """Tokens and positions int64 [T] to normed hidden states [T, hidden_size]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [R, hidden_size] to float32 [R, vocabulary_size]."""
