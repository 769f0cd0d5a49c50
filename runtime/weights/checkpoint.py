"""What a checkpoint offers to the models: tensors by their Hugging Face names, read when asked for.

`safetensors`, `gguf` and `dummy` implement `Checkpoint`; `layers` and `models` take tensors out of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.quant.blocks import FourBit

__all__ = ["Checkpoint", "Stored", "require"]


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a checkpoint. `kind` is how it is stored (F32, BF16, Q4_1 ...).

    `read` gives it dense: in its own float dtype, or float32 out of quantised blocks. `read_blocks` gives four-bit blocks
    as they lie in the file, where it has such.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    read: Callable[[], Tensor]
    read_blocks: Callable[[], FourBit] | None = None


class Checkpoint(Protocol):
    """The weights of one model and its shape."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    @property
    def where(self) -> str:
        """The file or folder, for messages."""

    def find(self, name: str) -> Stored | None:
        """The tensor of this Hugging Face name, or None. Raises ModelError where it can't be read."""


def require(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Stored:
    """The tensor of this name and shape. Raises ModelError naming what is missing or of another shape."""
    stored = checkpoint.find(name)
    if stored is None:
        raise ModelError(
            f"{checkpoint.where}: the tensor {name} is missing; the checkpoint is incomplete or of another architecture."
        )
    if stored.shape != shape:
        raise ModelError(f"{checkpoint.where}: the tensor {name} must have shape {list(shape)}, got {list(stored.shape)}.")
    return stored
