"""The command line. Importing it loads neither torch nor a server: each command loads what it needs when it runs.

Options of `serve` are the fields of EngineConfig and ServerOptions, with their types, defaults and descriptions.
"""

import os
import sys
from typing import Any, Final

import typer

from branchpoint.cli_bench import bench
from branchpoint.cli_conformance import conformance
from branchpoint.cli_options import KEY_VARIABLE, MODELS, filled, options, takes
from branchpoint.cli_plan import plan
from branchpoint.cli_server import cache, doctor
from branchpoint.errors import BranchpointError
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.served import served_models

__all__ = ["app", "main"]

app: Final = typer.Typer(
    name="branchpoint",
    help="Structured generation: a language and a runtime for programs that call a language model many times.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(bench, name="bench")
_EXIT_REFUSED = 2


def _serve(models: list[str] | None, **given: Any) -> None:
    """Serve MODEL, or several, over HTTP: OpenAI's API, SGLang's /generate, and what the language needs."""
    if not given["api_keys"] and os.environ.get(KEY_VARIABLE) is not None:  # meant to be guarded, and would be open
        raise InvalidRequest(f"{KEY_VARIABLE} is set but holds no key; unset it to serve without one.", param="api_keys")
    server = filled(ServerOptions, given)
    served = served_models(models or [], filled(EngineConfig, given, model=""), server)
    from branchpoint.lang.serve import programs_endpoint
    from branchpoint.runtime.serving.launch import launch

    raise typer.Exit(launch(served, server, [programs_endpoint()]))


app.command("serve")(takes(_serve, [MODELS, *options(ServerOptions), *options(EngineConfig, ("model", "served_name"))]))


for command in (plan, cache, doctor, conformance):
    app.command(command.__name__)(command)


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
