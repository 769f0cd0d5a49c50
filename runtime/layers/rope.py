"""Rotary frequencies of a model and the cos/sin table a forward pass indexes, with the supported ways of scaling.

Made once when a model is built; `kernels.reference.rope_rotate` applies the rows.
"""

import math

import torch
from torch import Tensor

from branchpoint.kernels.reference import rope_tables
from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.config import ModelConfig, RopeScaling

__all__ = ["inverse_frequencies", "rotary_table"]


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] float32, and a factor on cos and sin. Raises ModelError for a wrong count of factors."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies, 1.0
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling), 1.0
    if scaling.kind == "yarn":
        return _yarn(frequencies, scaling, config)
    if len(scaling.factors) != config.head_dim // 2:
        raise ModelError(f"Rope factors must be head_dim / 2 = {config.head_dim // 2} numbers, got {len(scaling.factors)}.")
    return frequencies / torch.tensor(scaling.factors), 1.0


def rotary_table(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cos and sin of every position of the context: two tensors [context_length, 1, head_dim] of `dtype` on `device`."""
    frequencies, scale = inverse_frequencies(config)
    positions = torch.arange(config.context_length, dtype=torch.float32)
    cos, sin = rope_tables(torch.outer(positions, frequencies), scale)
    return cos.to(device, dtype), sin.to(device, dtype)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by the factor, short ones kept, those between blended."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # rotations within the trained context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / scaling.factor + blend * frequencies


def _yarn(frequencies: Tensor, scaling: RopeScaling, config: ModelConfig) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, sections 3.2 and 3.4): stretched below `beta_slow` turns, kept above `beta_fast`."""
    dim, pairs = config.head_dim, config.head_dim // 2

    def dimension(turns: float) -> float:
        return dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    stretched = ((torch.arange(pairs, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    attention = scaling.attention_factor
    if attention is None:
        attention = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return frequencies / scaling.factor * stretched + frequencies * (1.0 - stretched), attention
