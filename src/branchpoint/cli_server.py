"""Commands that ask a running server: `cache` and `doctor`. Added to the application by `cli`."""

import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from branchpoint.cli_options import KEY_VARIABLE
from branchpoint.runtime.errors import InvalidRequest

if TYPE_CHECKING:
    import httpx

__all__ = ["cache", "doctor"]

Url = Annotated[str, typer.Option(help="The server.")]
Key = Annotated[str, typer.Option(envvar=KEY_VARIABLE, help="A key that may manage the server.")]

Model = Annotated[
    str, typer.Option(help="Which of several models; where left out, the first one's is shown and all are flushed.")
]

_TIMEOUT = 60.0


def _ask(url: str, api_key: str, method: str, path: str) -> "httpx.Response":
    """What the server answers. Raises InvalidRequest where none is there."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return httpx.request(method, url.rstrip("/") + path, headers=headers, timeout=_TIMEOUT)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InvalidRequest(f"No server answers at {url}: {error}. Give its address with --url.", param="url") from error


def _told(url: str, answer: "httpx.Response") -> str:
    if not answer.is_success:
        raise InvalidRequest(f"{url} answered {answer.status_code}: {answer.text[:300]}")
    return answer.text


def cache(
    url: Url = "http://127.0.0.1:8000",
    api_key: Key = "",
    model: Model = "",
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, not as text.")] = False,
    flush: Annotated[bool, typer.Option("--flush", help="Forget all cached prefixes instead.")] = False,
) -> None:
    """Show what a server's cache holds, and which prompts could share more of it."""
    query = {} if flush else {"format": "json" if as_json else "text"}
    path = f"{'/flush_cache' if flush else '/cache'}?{urlencode(query | ({'model': model} if model else {}))}"
    typer.echo(_told(url, _ask(url, api_key, "POST" if flush else "GET", path)).rstrip("\n"))


def doctor(
    url: Annotated[str, typer.Argument(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Key = "",
    model: Annotated[str, typer.Option(help="Which of several models; all together where left out.")] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch it.")] = 10.0,
    looks: Annotated[int, typer.Option(min=2, help="How often to look meanwhile.")] = 11,
) -> None:
    """Watch a server under load: say what holds it back, and what to change."""
    from branchpoint.runtime.serving.doctor import diagnose, drafting, read_look

    began, seen = time.monotonic(), [read_look(_told(url, _ask(url, api_key, "GET", "/metrics")), model)]
    for place in range(1, looks):
        time.sleep(max(0.0, began + seconds * place / (looks - 1) - time.monotonic()))
        seen.append(read_look(_told(url, _ask(url, api_key, "GET", "/metrics")), model))
    if "num_requests_running" not in seen[-1]:
        raise InvalidRequest(
            f"{url}/metrics has no series of Branchpoint; give the address of a `branchpoint serve`.", param="url"
        )
    answer = _ask(url, api_key, "GET", f"/cache?{urlencode({'model': model} if model else {})}")
    lost = [str(each["message"]) for each in answer.json()["lost_reuse"]] if answer.is_success else []
    passed = time.monotonic() - began
    found = diagnose(seen, passed, lost)
    ended = seen[-1].get("request_success_total", 0) - seen[0].get("request_success_total", 0)
    running = sum(look["num_requests_running"] for look in seen) / len(seen)
    typer.echo(f"{ended:.0f} calls ended in {seconds:g} s, {running:.1f} ran on average.")
    if not ended and running == 0:
        typer.echo("Nothing ran: ask again while the server is under load.")
    if not answer.is_success:
        typer.echo(f"The cache wasn't looked at: it answered {answer.status_code}; give a key of the server (--api-key).")
    for line in drafting(seen, passed):
        typer.echo(line)
    for finding in found:
        typer.echo(f"\n{finding.what}\n  {finding.evidence}\n  → {finding.change}")
    if not found and ended:
        typer.echo("Nothing stands out.")
