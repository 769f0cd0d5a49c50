"""`branchpoint conformance`: whether a server is what real clients expect, asked through them. Added to the app by `cli`."""

from typing import Annotated

import typer

from branchpoint.cli_options import KEY_VARIABLE
from branchpoint.runtime.errors import InvalidRequest

__all__ = ["conformance"]


def conformance(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str, typer.Option(envvar=KEY_VARIABLE, help="A key of the server.")] = "",
    model: Annotated[str, typer.Option(help="The model's name; the first that is served where left out.")] = "",
    client: Annotated[list[str] | None, typer.Option(help="Ask through this client only; may be given several times.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a request may take.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, not as text.")] = False,
) -> None:
    """Check a server of OpenAI's API through the clients that are installed; exit status 1 where a check fails."""
    import msgspec

    from branchpoint.runtime.bench.client import first_model
    from branchpoint.runtime.conformance.catalogue import CHECKS
    from branchpoint.runtime.conformance.report import Result, run, summary
    from branchpoint.runtime.conformance.server import Server

    clients = dict.fromkeys(check.client for check in CHECKS)
    for name in client or ():
        if name not in clients:
            raise InvalidRequest(f"There is no client {name!r}; known are {', '.join(clients)}.", param="client")
    root = url.rstrip("/").removesuffix("/v1")
    server = Server(root, model or first_model(root, api_key), api_key, timeout)

    def tell(result: Result) -> None:
        if not as_json:
            typer.echo(result.line)

    results = run(server, [check for check in CHECKS if not client or check.client in client], tell)
    server.close()
    typer.echo(msgspec.json.encode(results).decode() if as_json else summary(results))
    if any(result.outcome == "failed" for result in results):
        raise typer.Exit(1)
