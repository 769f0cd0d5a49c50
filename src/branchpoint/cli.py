"""The command line. Importing it loads neither torch nor a server: each command loads what it needs when it runs.

Options of `serve` are the fields of EngineConfig and ServerOptions, with their types, defaults and descriptions.
"""

import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
import typer

from branchpoint.errors import BranchpointError
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.options import ServerOptions

__all__ = ["app", "main"]

app: Final = typer.Typer(
    name="branchpoint",
    help="Structured generation: a language and a runtime for programs that call a language model many times.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_KEY_VARIABLE = "BRANCHPOINT_API_KEY"
_FLAGS: Mapping[str, tuple[str, str | None]] = {
    "api_keys": ("--api-key", _KEY_VARIABLE),
    "model_names": ("--served-model-name", None),
    "drafters": ("--drafter", None),
}
"""Options that aren't called as their field: flag, and the environment variable that gives them too."""

_ALIASES: Mapping[str, tuple[str, ...]] = {"context_length": ("--max-model-len",)}
"""Further names of options, as other servers call them."""

_EXIT_REFUSED = 2


def _option(name: str, hint: Any, default: object) -> inspect.Parameter:
    """A field of a config struct as a parameter that typer understands."""
    help_text = None
    if get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        help_text = next((note.description for note in notes if isinstance(note, msgspec.Meta)), None)
    flag, variable = _FLAGS.get(name, ("--" + name.replace("_", "-"), None))
    if hint is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    if get_origin(hint) is tuple:
        hint, default = list[str], []
    option = typer.Option(flag, *_ALIASES.get(name, ()), help=help_text, envvar=variable, show_default=default not in (None, []))
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option])


def _options(struct: type[msgspec.Struct], leave_out: Iterable[str] = ()) -> list[inspect.Parameter]:
    hints = get_type_hints(struct, include_extras=True)
    fields = [field for field in msgspec.structs.fields(struct) if field.name not in leave_out]
    return [_option(field.name, hints[field.name], field.default) for field in fields]


def _serve(model: str, **given: Any) -> None:
    """Serve MODEL over HTTP: OpenAI's API, SGLang's /generate, and what the language needs."""
    names = {field.name for field in msgspec.structs.fields(ServerOptions)}
    chosen: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if not chosen["api_keys"] and os.environ.get(_KEY_VARIABLE) is not None:  # meant to be guarded, and would be open
        raise InvalidRequest(f"{_KEY_VARIABLE} is set but holds no key; unset it to serve without one.", param="api_keys")
    options = ServerOptions(**{name: value for name, value in chosen.items() if name in names})
    served_name = options.model_names[0] if options.model_names else None
    config = EngineConfig(
        model=model, served_name=served_name, **{name: value for name, value in chosen.items() if name not in names}
    )
    from branchpoint.lang.serve import programs_endpoint
    from branchpoint.runtime.serving.launch import launch

    raise typer.Exit(launch(config, options, [programs_endpoint()]))


_MODEL = inspect.Parameter(
    "model",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    annotation=Annotated[
        str, typer.Argument(help=get_type_hints(EngineConfig, include_extras=True)["model"].__metadata__[0].description)
    ],
)
_PARAMETERS = [_MODEL, *_options(ServerOptions), *_options(EngineConfig, ("model", "served_name"))]
_serve.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]  # what typer reads instead of **given
_serve.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS} | {"return": None}
app.command("serve")(_serve)


@app.command("cache")
def _cache(
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str, typer.Option(envvar=_KEY_VARIABLE, help="A key that may manage the server.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, not as text.")] = False,
    flush: Annotated[bool, typer.Option("--flush", help="Forget all cached prefixes instead.")] = False,
) -> None:
    """Show what a server's cache holds, and which prompts could share more of it."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            if flush:
                answer = client.post("/flush_cache")
            else:
                answer = client.get("/cache", params={"format": "json" if as_json else "text"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidRequest(f"No server answers at {url}: {error}. Give its address with --url.", param="url") from error
    if not answer.is_success:
        raise InvalidRequest(f"{url} answered {answer.status_code}: {answer.text[:300]}")
    typer.echo(answer.text.rstrip("\n"))


@app.command("version")
def _version() -> None:
    """Print the version."""
    from importlib import metadata

    try:
        typer.echo(f"branchpoint {metadata.version('branchpoint')}")
    except metadata.PackageNotFoundError as error:
        raise InvalidRequest(
            "branchpoint runs from its sources and isn't installed; `pip install -e .` gives it a version."
        ) from error


def main() -> None:
    """Run the command line; an error of ours is one line and exit status 2."""
    try:
        app()
    except BranchpointError as error:
        sys.stderr.write(f"branchpoint: {' '.join(str(error).split())}\n")
        sys.exit(_EXIT_REFUSED)
