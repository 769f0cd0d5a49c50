"""The shape of a model, parsed once from a Hugging Face config.json (`models.huggingface`) or GGUF metadata (`models.gguf`).

Everything above the weights reads this one object; it is exact: what it can't express was refused when it was made.
"""

import math
from dataclasses import dataclass
from typing import Literal

from branchpoint.runtime.errors import ModelError

__all__ = ["ModelConfig", "RopeScaling"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; fields outside the named kind keep their defaults.

    `linear` and `yarn` and `llama3` as in the papers and in transformers; `factors` divides each frequency by its own number
    (how GGUF files state llama3's scaling). `attention_factor` multiplies cos and sin (yarn; None: from the factor).
    Raises ModelError for numbers that stretch nothing.
    """

    kind: Literal["linear", "llama3", "yarn", "factors"]
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        above_zero = {"factor": self.factor, "beta_fast": self.beta_fast, "beta_slow": self.beta_slow}
        above_zero |= {f"factors[{at}]": value for at, value in enumerate(self.factors)}
        if self.attention_factor is not None:
            above_zero["attention_factor"] = self.attention_factor
        if self.kind in ("llama3", "yarn"):
            above_zero["original_context"] = self.original_context
        for name, value in above_zero.items():
            if not 0 < value < math.inf:
                raise ModelError(f"The model's rope scaling needs {name} to be a finite number above 0, got {value!r}.")
        if not 0 < self.low_freq_factor < self.high_freq_factor < math.inf:
            raise ModelError(
                f"The model's rope scaling needs 0 < low_freq_factor < high_freq_factor, got {self.low_freq_factor!r} and "
                f"{self.high_freq_factor!r}."
            )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense decoder of one of the supported families. Sizes in elements, `context_length` in tokens.

    `architecture` is the family's name in the registry. `attention_bias` is on q, k and v, `output_bias` on the attention's
    output, `mlp_bias` on the MLP's three; `qk_norm` is an RMS norm over each head of q and k, before rope. Raises ModelError.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocabulary_size: int
    context_length: int
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tied: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or not 1 <= value <= _LARGEST:
                raise ModelError(f"The model's {name} must be a whole number in [1, {_LARGEST}], got {value!r:.40}.")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}.")
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary positions, got {self.head_dim}.")
        if not 1 < self.rope_theta < math.inf:
            raise ModelError(f"The model's rope_theta must be a finite number above 1, got {self.rope_theta!r}.")
        if not 0 <= self.rms_eps < 1:
            raise ModelError(f"The model's rms_eps must be a number in [0, 1), got {self.rms_eps!r}.")

    @property
    def num_parameters(self) -> int:
        """Weights in all matrices, the embedding counted once where it is tied."""
        layer = self.hidden_size * (2 * self.q_size + 2 * self.kv_size + 3 * self.intermediate_size)
        return self.num_layers * layer + (1 if self.tied else 2) * self.vocabulary_size * self.hidden_size

    @property
    def q_size(self) -> int:
        """Columns of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of all key heads together (and of all value heads)."""
        return self.num_kv_heads * self.head_dim


_LARGEST = 2**31
_SIZES = (
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "vocabulary_size",
    "context_length",
)
