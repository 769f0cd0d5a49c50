"""Which family an architecture's name belongs to. A new family is a new file and one more entry here."""

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.family import Family
from branchpoint.runtime.models.llama import LLAMA
from branchpoint.runtime.models.qwen2 import QWEN2
from branchpoint.runtime.models.qwen3 import QWEN3

__all__ = ["FAMILIES", "family_named", "family_of_gguf", "family_of_huggingface"]

FAMILIES = (LLAMA, QWEN2, QWEN3)


def family_of_huggingface(architecture: str, where: str) -> Family:
    """The family of a class name in config.json. Raises ModelError naming the supported ones."""
    return _find(architecture, {name: family for family in FAMILIES for name in family.huggingface}, where)


def family_of_gguf(architecture: str, where: str) -> Family:
    """The family of a general.architecture. Raises ModelError naming the supported ones."""
    return _find(architecture, {name: family for family in FAMILIES for name in family.gguf}, where)


def family_named(name: str, where: str) -> Family:
    """The family of this name. Raises ModelError naming the supported ones."""
    return _find(name, {family.name: family for family in FAMILIES}, where)


def _find(name: str, families: dict[str, Family], where: str) -> Family:
    family = families.get(name)
    if family is None:
        raise ModelError(f"{where}: the architecture {name!r} is not supported; supported are {', '.join(families)}.")
    return family
