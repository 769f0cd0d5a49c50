"""The page at `/`: one document of its own parts, sent with a policy that lets it load and run nothing else.

The parts lie in the folder `page`; they are joined once, at the start. The page asks the other routes with the reader's key, so
it tells nothing by itself and is open.
"""

import base64
import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.responses import Response

__all__ = ["page_route"]

SCRIPTS = ("elements", "server", "metrics", "plot", "figures", "requests", "tree", "output", "playground", "start")
"""In the order in which they run."""


def page_route() -> Callable[[], Awaitable[Response]]:
    """The handler of `/`."""
    folder = files("branchpoint.runtime.serving").joinpath("page")
    style = folder.joinpath("page.css").read_text("utf-8")
    script = "\n".join(folder.joinpath(f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    document = folder.joinpath("page.html").read_text("utf-8").replace("/*style*/", style).replace("/*script*/", script)
    body, headers = document.encode(), _headers(style, script)

    async def page() -> Response:
        """This server at a glance, and a place to try it."""
        return Response(body, headers=headers, media_type="text/html")

    return page


def _headers(style: str, script: str) -> dict[str, str]:
    """What the browser may do: run these two parts, and ask this server."""
    policy = {
        "default-src": "'none'",
        "script-src": _source(script),
        "style-src": _source(style),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
