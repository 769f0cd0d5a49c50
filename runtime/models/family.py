"""What a family of architectures states about itself: its names in the two formats and what is particular in its configuration.

One file a family (`llama`, `qwen2`, `qwen3`) makes one of these; `registry` finds them by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.huggingface import Fields

__all__ = ["Family"]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of dense decoders.

    `huggingface` are class names in config.json's `architectures`, each with what transformers assumes where the file leaves a
    field out; `gguf` are values of general.architecture. `read` parses a config.json. `gguf_permuted`: llama.cpp's converter
    interleaves the rows of q and k. `qkv_bias` and `qk_norm` are for `dummy`.
    """

    name: str
    huggingface: Mapping[str, Mapping[str, object]]
    gguf: tuple[str, ...]
    read: Callable[[Fields], ModelConfig]
    gguf_permuted: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    def read_named(self, architecture: str, fields: Fields) -> ModelConfig:
        """Parse a config.json of this class, left-out fields filled in. Raises ModelError."""
        return self.read(Fields({**self.huggingface[architecture], **fields.values}, fields.where))
