"""Which models a server serves, under which names and with which options: from the command line, or from a file of models.

Read once at the start, for `launch`.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.errors import clip
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.weights.resolve import locate

__all__ = ["ServedModel", "served_models"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and what clients may call it (its own name where empty); the first name is what answers carry."""

    config: EngineConfig
    names: tuple[str, ...]


class _ModelsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: list[dict[str, object]]


def served_models(models: Sequence[str], base: EngineConfig, options: ServerOptions) -> list[ServedModel]:
    """The models to serve; `base` has the options that none of them says for itself.

    Raises InvalidRequest where there is none, or where two have one name.
    """
    if options.lora_dirs:
        base = msgspec.structs.replace(base, enable_lora=True)
    if options.models_file is not None:
        if models or options.model_names:
            raise InvalidRequest("The models file names all models, so none can be named beside it.", param="models_file")
        served = _read(Path(options.models_file), base)
    elif len(models) == 1:
        served = [_named(msgspec.structs.replace(base, model=models[0]), options.model_names)]
    else:
        if options.model_names:
            raise InvalidRequest("With several models, name each in a models file (--models-file).", param="model_names")
        served = [_named(msgspec.structs.replace(base, model=model), (locate(model).name,)) for model in models]
    if not served:
        raise InvalidRequest("Name a model to serve, or several, or a file of them (--models-file).", param="model")
    names = [name for each in served for name in (*each.names, *each.config.adapters)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidRequest(f"Each model needs names of its own, got {clip(min(twice), 80)!r} twice.", param="model")
    return served


def _named(config: EngineConfig, names: tuple[str, ...]) -> ServedModel:
    return ServedModel(msgspec.structs.replace(config, served_name=names[0] if names else None), names)


def _read(path: Path, base: EngineConfig) -> list[ServedModel]:
    """A `[[model]]` for each: `model`, `names`, and options of its own by their field's name."""
    try:
        tables = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _ModelsFile).model
        return [_entry(table, base) for table in tables]
    except OSError as error:
        raise InvalidRequest(f"The models file {path} can't be read: {error.strerror}.", param="models_file") from error
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        told = clip(str(error), 200)
        raise InvalidRequest(f"The models file {path} should hold [[model]] tables: {told}.", param="models_file") from error


def _entry(table: dict[str, object], base: EngineConfig) -> ServedModel:
    names = msgspec.convert(table.get("names", []), tuple[str, ...])
    own = {name: value for name, value in table.items() if name != "names"}
    if "model" not in own or "served_name" in own:
        raise msgspec.ValidationError("each needs a `model`, and may have `names`")
    config = msgspec.convert(msgspec.structs.asdict(base) | own, EngineConfig)
    return _named(config, names or (locate(config.model).name,))
