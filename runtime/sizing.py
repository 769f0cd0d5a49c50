"""KV arithmetic before anything is loaded: how many sequences of which length fit beside which form of the weights.

Asked by `branchpoint plan`; the engine itself measures (`capacity`) once the weights are in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.models.config import ModelConfig

__all__ = ["FORMS", "Fit", "Form", "fit", "fits"]

_GROUP = 32


@dataclass(frozen=True, slots=True)
class Form:
    """A way to hold weights and KV: bytes of a weight of a linear layer, of another weight, and of a KV number; and where."""

    weights: str
    kv: str
    linear_bytes: float
    other_bytes: float
    kv_bytes: int
    where: str

    def weight_bytes(self, shape: ModelConfig) -> int:
        """All weights of a model; embedding and head aren't linear layers."""
        tables = (1 if shape.tied else 2) * shape.vocabulary_size * shape.hidden_size
        return round((shape.num_parameters - tables) * self.linear_bytes + tables * self.other_bytes)

    def token_bytes(self, shape: ModelConfig) -> int:
        """Keys and values of one token in all layers."""
        return 2 * shape.num_layers * shape.kv_size * self.kv_bytes


FORMS = (
    Form("float32", "float32", 4, 4, 4, "CPU, GPU"),
    Form("bfloat16", "bfloat16", 2, 2, 2, "CPU, GPU"),
    Form("bfloat16", "fp8", 2, 2, 1, "GPU"),
    Form("int8", "bfloat16", 1, 4, 2, "CPU"),
    Form("int4", "bfloat16", 0.5 + 4 / _GROUP, 4, 2, "CPU"),
)
"""The forms that the engine knows; a group of four-bit weights has a scale and an offset of two bytes each."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits: `kv_bytes` are left for KV (below 0: the weights alone are too much), which hold `tokens`.

    `sequences` are those of each length asked for, that run at once.
    """

    form: Form
    weight_bytes: int
    kv_bytes: int
    tokens: int
    sequences: tuple[int, ...]


def fits(shape: ModelConfig, memory: int, lengths: Sequence[int], *, page_size: int = 16, shared: int = 0) -> list[Fit]:
    """For each form what fits in `memory` bytes. Raises InvalidRequest for lengths beyond the model's context.

    The first `shared` tokens of all sequences are the same, and held once.
    """
    for length in lengths:
        if not 1 <= length <= shape.context_length:
            raise InvalidRequest(f"A length must be in [1, {shape.context_length}], got {length}.", param="length")
        if not 0 <= shared < length:
            raise InvalidRequest(f"The shared prefix must be shorter than each length, got {shared} of {length}.", param="shared")
    return [fit(form, shape, memory, lengths, page_size=page_size, shared=shared) for form in FORMS]


def fit(form: Form, shape: ModelConfig, memory: int, lengths: Sequence[int], *, page_size: int, shared: int) -> Fit:
    """See `fits`. Pages are whole: what a sequence has beyond the prefix begins with the rest of the prefix's last page."""
    weights = form.weight_bytes(shape)
    left = memory - weights
    pages = max(0, left) // (form.token_bytes(shape) * page_size)
    common = shared // page_size
    own = [-(-length // page_size) - common for length in lengths]
    return Fit(form, weights, left, pages * page_size, tuple(max(0, pages - common) // each for each in own))
