"""Loads the model that `EngineConfig.draft_model` names, beside the one that it guesses for: same device, same forms of weights.

Called by the runner's loading. What it draws must be tokens of the target's vocabulary, which `check_vocabulary` holds.
"""

from dataclasses import replace

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.base import LayerAttention, Model
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.tokenizer import Tokenizer
from branchpoint.runtime.weights.loader import LoadedModel, load_model, model_shape

__all__ = ["check_vocabulary", "load_draft"]

NEVER = -1e9
"""The logit of an id that only the target has."""


def load_draft(config: EngineConfig, name: str, target: LoadedModel, device: torch.device) -> LoadedModel:
    """The model of this name, with logits as wide as the target's and no longer context. Raises as `load_model` does."""
    own = msgspec.structs.replace(config, model=name, served_name=None, context_length=None)
    context = min(model_shape(own).context_length, target.config.context_length)
    loaded = load_model(msgspec.structs.replace(own, context_length=context), device)
    width = target.config.vocabulary_size
    return loaded if loaded.config.vocabulary_size == width else replace(loaded, model=_Fitted(loaded.model, width))


def check_vocabulary(draft: Tokenizer, target: Tokenizer) -> None:
    """Raise ModelError where an id isn't the same token to both. The ids that one has more must be unused."""
    for token in range(max(draft.vocabulary_size, target.vocabulary_size)):
        own, other = (each.token_bytes(token) if token < each.vocabulary_size else b"" for each in (draft, target))
        if own != other:
            raise ModelError(
                f"draft_model must have the model's vocabulary, but token {token} is {own[:40]!r} to it and {other[:40]!r} "
                "to the model; take a smaller model of the same family.",
            )


class _Fitted:
    """A model whose logits are cut, or filled up, to another width."""

    def __init__(self, model: Model, width: int) -> None:
        self._model = model
        self._width = width

    @property
    def config(self) -> ModelConfig:
        """See `Model`."""
        return self._model.config

    def forward(self, tokens: Tensor, positions: Tensor, attention: LayerAttention) -> Tensor:
        """See `Model`."""
        return self._model.forward(self._known(tokens), positions, attention)

    def embed(self, tokens: Tensor) -> Tensor:
        """See `Model`."""
        return self._model.embed(self._known(tokens))

    def _known(self, tokens: Tensor) -> Tensor:
        return tokens.clamp(max=self.config.vocabulary_size - 1)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        logits = self._model.logits(hidden)
        return functional.pad(logits, (0, self._width - logits.shape[-1]), value=NEVER)
