"""OpenTelemetry traces, an extra: one span for each request, under the caller's own where it sends a `traceparent`.

The SDK is imported only where `--otlp-endpoint` is given. Told by `answer` of each request's end; spans go out on a thread.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, Self, cast

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.record import RequestRecord

__all__ = ["Traces", "Tracing"]

_NANO = 1_000_000_000
_EXTRA = "Traces need OpenTelemetry's SDK: pip install 'branchpoint[otel]', or leave out --otlp-endpoint."


class _Span(Protocol):
    def set_attributes(self, attributes: Mapping[str, object]) -> None: ...
    def add_event(self, name: str, timestamp: int) -> None: ...
    def end(self, end_time: int) -> None: ...


class Tracing(Protocol):
    """Makes spans: `start(name, parent's traceparent or "", start in nanoseconds since 1970)`; `close` sends what waits."""

    def start(self, name: str, parent: str, start: int) -> _Span:
        """A span that has begun."""

    def close(self) -> None:
        """Send what waits, and end."""


class Traces:
    """Tells of requests to `tracing`; without one, to nobody."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing

    @classmethod
    def to(cls, endpoint: str | None, service: str) -> Self:
        """Traces to an OTLP collector over HTTP. Raises InvalidRequest where the SDK isn't installed."""
        return cls(None if endpoint is None else _Otlp(endpoint, service))

    def tell(self, record: RequestRecord, exchange: Exchange) -> None:
        """A request is over: its span, with the semantic conventions' names for what a model did."""
        if self._tracing is None:
            return
        told, began = record.fields(exchange), int(record.began * _NANO)
        span = self._tracing.start(f"POST {record.path}", record.parent, began)
        names = {
            "gen_ai.request.id": told["request_id"],
            "gen_ai.response.model": told["model"],
            "gen_ai.usage.input_tokens": told["prompt_tokens"],
            "gen_ai.usage.output_tokens": told["completion_tokens"],
            "gen_ai.response.finish_reasons": tuple(str(told["finish"]).split(",")),
            "gen_ai.latency.time_in_queue": told["queue_seconds"],
            "gen_ai.latency.e2e": told["seconds"],
            "branchpoint.cached_tokens": told["cached_tokens"],
            "branchpoint.calls": told["calls"],
            "branchpoint.completed": told["completed"],
        }
        span.set_attributes({"gen_ai.system": "branchpoint", **names})
        if record.first is not None:
            span.set_attributes({"gen_ai.latency.time_to_first_token": record.first})
            span.add_event("first token", timestamp=began + int(record.first * _NANO))
        span.end(end_time=began + int(record.total * _NANO))

    def close(self) -> None:
        """Send what waits."""
        if self._tracing is not None:
            self._tracing.close()


class _Otlp:
    """The SDK, behind `Tracing`."""

    def __init__(self, endpoint: str, service: str) -> None:
        try:
            sdk = import_module("opentelemetry.sdk.trace")
            export = import_module("opentelemetry.sdk.trace.export")
            exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            resources = import_module("opentelemetry.sdk.resources")
            self._api = import_module("opentelemetry.trace")
            self._propagation = import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError as error:
            raise InvalidRequest(_EXTRA, param="otlp_endpoint") from error
        self._provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": service}))
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("branchpoint")

    def start(self, name: str, parent: str, start: int) -> _Span:
        context = self._propagation.TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else None
        span = self._tracer.start_span(name, context=context, kind=self._api.SpanKind.SERVER, start_time=start)
        return cast(_Span, span)

    def close(self) -> None:
        self._provider.shutdown()
