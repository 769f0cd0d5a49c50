"""Counts and times every HTTP request, under the names that prometheus-fastapi-instrumentator (and so vLLM) has for them.

An ASGI layer outside of everything, so that refusals by key count too. Labels are bounded: unknown paths are `none`.
"""

import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HttpMeter", "HttpMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})


class HttpMetrics:
    """`http_requests_total`, `http_request_duration_seconds`, and the requests that are open now. Has its own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ["method", "status", "handler"]
        self._requests = Counter("http_requests", "HTTP requests by method, status and handler.", labels, registry=self._registry)
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "Time of an HTTP request until its last byte.",
            ["method", "handler"],
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._open = Gauge("http_requests_open", "HTTP requests that are being answered.", registry=self._registry)

    def begin(self) -> None:
        """A request has come."""
        self._open.inc()

    def end(self, method: str, handler: str, status: int, seconds: float) -> None:
        """A request has ended; status 0: it was never answered."""
        group = f"{status // 100}xx" if status else "499"
        self._open.dec()
        self._requests.labels(method, group, handler).inc()
        self._seconds.labels(method, handler).observe(seconds)

    def render(self) -> bytes:
        """All of it as text."""
        return generate_latest(self._registry)


class HttpMeter:
    """Measures what `app` answers. `handlers` are the paths that are told apart."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, handlers: Iterable[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._handlers = frozenset(handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began = 0, time.monotonic()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.begin()
        try:
            await self._app(scope, receive, watched)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            handler = scope["path"] if scope["path"] in self._handlers else "none"
            self._metrics.end(method, handler, status, time.monotonic() - began)
