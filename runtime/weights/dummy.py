"""Random weights of any shape, for measurement and tests: the same seed gives the same model.

Opened by `weights.loader` for `dummy:llama` (or qwen2, qwen3) and `dummy:/path/to/config.json`.
"""

import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.registry import FAMILIES, family_named
from branchpoint.runtime.weights.checkpoint import Stored
from branchpoint.runtime.weights.safetensors import read_folder_config

__all__ = ["DummyCheckpoint", "dummy_config"]


MOST_DRAWN = 2**22
"""Numbers that are drawn for a tensor; larger ones repeat them, since drawing billions would take minutes."""


class DummyCheckpoint:
    """Normal weights scaled by one over the root of the inputs, norms of one, small biases; float32."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self.where = f"dummy {config.architecture}"
        self._seed = seed
        self._shapes = _shapes(config)

    def find(self, name: str) -> Stored | None:
        """See `Checkpoint`."""
        shape = self._shapes.get(_kind_of(name))
        return None if shape is None else Stored(name, shape, "F32", lambda: self._draw(name, shape))

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor's values, a function of seed and name alone."""
        if "norm" in name:
            return torch.ones(shape)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        scale = 0.02 if len(shape) == 1 or "embed" in name else shape[-1] ** -0.5
        count = math.prod(shape)
        drawn = torch.randn(min(count, MOST_DRAWN), generator=generator).mul_(scale)
        return drawn.repeat(-(-count // MOST_DRAWN))[:count].view(shape)


def dummy_config(name: str) -> ModelConfig:
    """The shape of `dummy:` + name: a family's small default, or that of a config.json. Raises ModelError."""
    path = Path(name).expanduser()
    if path.name == "config.json" or path.is_dir():
        return read_folder_config(path if path.is_dir() else path.parent)
    if name not in {family.name for family in FAMILIES}:
        raise ModelError(
            f"dummy:{name}: expected one of {', '.join(family.name for family in FAMILIES)}, or the path of a config.json."
        )
    family = family_named(name, "dummy")
    return ModelConfig(
        architecture=family.name,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocabulary_size=512,
        context_length=2048,
        attention_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
    )


def _kind_of(name: str) -> str:
    """The name without its layer's number."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    q_size, kv_size = config.q_size, config.kv_size
    layer, attention, mlp = "model.layers", "model.layers.self_attn", "model.layers.mlp"
    linears = {
        f"{attention}.q_proj": (q_size, hidden),
        f"{attention}.k_proj": (kv_size, hidden),
        f"{attention}.v_proj": (kv_size, hidden),
        f"{attention}.o_proj": (hidden, q_size),
        f"{mlp}.gate_proj": (inner, hidden),
        f"{mlp}.up_proj": (inner, hidden),
        f"{mlp}.down_proj": (hidden, inner),
        "lm_head": (config.vocabulary_size, hidden),
        "model.embed_tokens": (config.vocabulary_size, hidden),
    }
    norms = {
        f"{layer}.input_layernorm": hidden,
        f"{layer}.post_attention_layernorm": hidden,
        f"{attention}.q_norm": head,
        f"{attention}.k_norm": head,
        "model.norm": hidden,
    }
    weights: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linears.items()}
    weights |= {f"{name}.weight": (size,) for name, size in norms.items()}
    return weights | {f"{name}.bias": (shape[0],) for name, shape in linears.items()}
