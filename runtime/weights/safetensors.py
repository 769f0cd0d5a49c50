"""A Hugging Face folder as a checkpoint: config.json, and safetensors in one file or in shards with an index.

Opened by `weights.loader`. Files are mapped; a tensor is copied when it is read.
"""

import json
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.config import ModelConfig
from branchpoint.runtime.models.huggingface import read_fields
from branchpoint.runtime.models.registry import family_of_huggingface
from branchpoint.runtime.weights.checkpoint import Stored

__all__ = ["SafetensorsCheckpoint", "read_folder_config"]

_KINDS = ("F32", "F16", "BF16", "F64")
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsCheckpoint:
    """Tensors of a Hugging Face folder, of the shape in its config.json unless one is given.

    Raises ModelError for a missing, truncated or corrupt file, naming it.
    """

    def __init__(self, folder: Path, config: ModelConfig | None = None) -> None:
        self.where = folder.name
        self.config = config or read_folder_config(folder)
        self._files = dict[str, safe_open]()
        self._holders = dict[str, safe_open]()
        for path, names in _weight_files(folder).items():
            file = _open(path)
            present = set(file.keys())
            for name in names if names is not None else present:
                if name not in present:
                    raise ModelError(f"{path}: the index lists the tensor {name} here, but the file doesn't hold it.")
                self._holders[name] = file

    def find(self, name: str) -> Stored | None:
        """See `Checkpoint`."""
        file = self._holders.get(name)
        if file is None:
            return None
        view = file.get_slice(name)
        kind = str(view.get_dtype())
        if kind not in _KINDS:
            raise ModelError(f"{self.where}: the tensor {name} is stored as {kind}; supported are {', '.join(_KINDS)}.")

        def read() -> Tensor:
            tensor: Tensor = file.get_tensor(name)
            return tensor

        return Stored(name, tuple(view.get_shape()), kind, read)


def read_folder_config(folder: Path) -> ModelConfig:
    """The model's shape from config.json, its end tokens from generation_config.json too. Raises ModelError."""
    fields = read_fields(folder / "config.json")
    architectures = fields.values.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError(f"{folder}/config.json must list the model's class in 'architectures', got {architectures!r}.")
    config = family_of_huggingface(str(architectures[0]), str(folder)).read_named(str(architectures[0]), fields)
    generation = folder / "generation_config.json"
    if generation.is_file():
        more = read_fields(generation).token_ids("eos_token_id")
        config = replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))
    return config


def _weight_files(folder: Path) -> dict[Path, list[str] | None]:
    """The files, each with the tensors that the index expects in it (None: whatever is there)."""
    index = folder / _INDEX
    if not index.is_file():
        single = folder / _SINGLE
        if not single.is_file():
            raise ModelError(f"{folder}: neither {_SINGLE} nor {_INDEX} is there; only safetensors weights are read.")
        return {single: None}
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:  # ValueError: no JSON, or no UTF-8
        raise ModelError(f"{index} must be a JSON object with a weight_map: {error!r}.") from error
    if not isinstance(places, dict) or not all(isinstance(value, str) for value in places.values()):
        raise ModelError(f"{index}: weight_map must map tensor names to file names.")
    files: dict[Path, list[str] | None] = {}
    for name, file in places.items():
        path = folder / file
        if path.parent != folder:
            raise ModelError(f"{index}: the file {file!r} must lie in the folder itself.")
        names = files.setdefault(path, [])
        if names is not None:
            names.append(name)
    return files


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{path} is missing, though the index names it.") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} can't be read, it may be truncated or corrupt: {error}.") from error
