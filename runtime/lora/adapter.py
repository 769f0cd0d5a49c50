"""What sequence and cache know of an adapter: its name, and which contents that name had. No tensors.

A sequence holds the adapter that it began with until it ends, whatever becomes of the name meanwhile.
"""

from dataclasses import dataclass

from branchpoint.runtime.errors import InvalidRequest

__all__ = ["ADAPTER_BEGIN", "CONFIG", "WEIGHTS", "Adapter", "check_name"]

ADAPTER_BEGIN = "\x1e"
"""What stands in a namespace of cached prefixes before the adapter that they were computed with."""

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of a folder that PEFT saved; nothing else of it is read."""

LONGEST_NAME = 256


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter as it was loaded under `name`; `digest` tells contents apart, in hex digits."""

    name: str
    digest: str

    @property
    def identity(self) -> str:
        """Equal for two adapters only where one may go on with what the other has computed."""
        return f"{self.name}@{self.digest}"


def check_name(name: str) -> None:
    """Raise InvalidRequest where an adapter can't be called so."""
    if not (name.isprintable() and 0 < len(name) <= LONGEST_NAME):
        raise InvalidRequest(
            f"An adapter's name must have 1 to {LONGEST_NAME} printable characters, got {name!r:.40}.", param="lora_name"
        )
