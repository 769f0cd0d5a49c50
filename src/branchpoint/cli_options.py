"""Config structs as options of the command line: one for each field, with its type, default and description. Used by `cli`."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import typer

from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

__all__ = ["KEY_VARIABLE", "MODEL", "MODELS", "filled", "number", "options", "takes"]

KEY_VARIABLE = "BRANCHPOINT_API_KEY"
_FLAGS: Mapping[str, tuple[str, str | None]] = {
    "api_keys": ("--api-key", KEY_VARIABLE),
    "model_names": ("--served-model-name", None),
    "drafters": ("--drafter", None),
    "served_model": ("--model", None),
    "key": ("--api-key", KEY_VARIABLE),
    "adapters": ("--lora-modules", None),
}
"""Options that aren't called as their field: flag, and the environment variable that gives them too."""

_ALIASES: Mapping[str, tuple[str, ...]] = {"context_length": ("--max-model-len",), "adapters": ("--lora-paths",)}
"""Further names of options, as other servers call them."""


def _option(name: str, hint: Any, default: object) -> inspect.Parameter:
    """A field of a config struct as a parameter that typer understands."""
    help_text = None
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        help_text = next((note.description for note in notes if isinstance(note, msgspec.Meta)), None)
    flag, variable = _FLAGS.get(name, ("--" + name.replace("_", "-"), None))
    if hint is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    metavar = "NAME=VALUE" if get_origin(hint) is dict else None
    if get_origin(hint) in (tuple, dict):
        hint, default = list[str], []
    shown = default not in (None, [])
    option = typer.Option(flag, *_ALIASES.get(name, ()), help=help_text, envvar=variable, show_default=shown, metavar=metavar)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option])


def options(struct: type[msgspec.Struct], leave_out: Iterable[str] = ()) -> list[inspect.Parameter]:
    """An option for each field of `struct`."""
    hints = get_type_hints(struct, include_extras=True)
    fields = [field for field in msgspec.structs.fields(struct) if field.name not in leave_out]
    return [_option(field.name, hints[field.name], field.default) for field in fields]


def number(name: str, default: int, help_text: str) -> inspect.Parameter:
    """An option that is a whole number, at least 1 (0 where that is its default)."""
    option = typer.Option("--" + name.replace("_", "-"), help=help_text, min=min(1, default))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[int, option])


def takes(command: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """`command`, which takes **given, with these parameters as typer sees them."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads instead of **given
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": None}
    return command


def filled(struct: type[_Struct], given: Mapping[str, Any], **more: object) -> _Struct:
    """The struct of what was given on the command line for its fields. Raises what its checks raise."""
    fields = {field.name: field for field in msgspec.structs.fields(struct)}
    chosen = {name: _value(fields[name].default_factory, name, value) for name, value in given.items() if name in fields}
    return struct(**(chosen | more))


def _value(kind: object, name: str, value: Any) -> object:
    """What was given for a field: a list as the tuple, or the dict, that the field is. Raises InvalidRequest."""
    if not isinstance(value, list) or kind is not dict:
        return tuple(value) if isinstance(value, list) else value
    pairs = [text.partition("=") for text in value]
    for text, (key, sign, rest) in zip(value, pairs, strict=True):
        if not (key and sign and rest) or [pair[0] for pair in pairs].count(key) > 1:
            flag = _FLAGS.get(name, (name, None))[0]
            raise InvalidRequest(f"{flag} takes NAME=VALUE, each name once, got {text!r:.80}.", param=name)
    return {key: rest for key, _, rest in pairs}


_MODEL_HELP = get_type_hints(EngineConfig, include_extras=True)["model"].__metadata__[0].description
MODEL = inspect.Parameter(
    "model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Annotated[str, typer.Argument(help=_MODEL_HELP)]
)
MODELS = inspect.Parameter(
    "models",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    default=None,
    annotation=Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=f"{_MODEL_HELP} Several share the memory.")],
)
