"""What requests leave behind for operators: log lines as objects, with ids and without text, and spans."""

import importlib
import json
import logging
import sys
from collections.abc import Mapping

import msgspec
import pytest

from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.serving.logs import JsonLines, fields
from branchpoint.runtime.serving.options import ServerOptions
from branchpoint.runtime.serving.traces import Traces, _Otlp
from tests.runtime.serving_site import Site, open_site

SECRET = "the secret text"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    form = JsonLines()
    told = [form.format(record) for record in caplog.records if record.name.startswith("branchpoint")]
    assert not any("\n" in line for line in told)
    return [json.loads(line) for line in told]


async def ask(site: Site, caplog: pytest.LogCaptureFixture, **body: object) -> list[dict[str, object]]:
    with caplog.at_level("INFO", logger="branchpoint.serving"):
        await site.complete(**({"prompt": SECRET} | body))
    return lines(caplog)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_one_object_with_its_id_counts_and_times(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with open_site() as site:
        (line,) = await ask(site, caplog, request_id="mine", max_tokens=3, n=2, stream=stream)
    assert line["request_id"] == "mine" and line["path"] == "/v1/completions" and line["stream"] is stream
    assert line["model"] == "fake" and line["level"] == "info" and str(line["time"]).endswith("+00:00")
    assert (line["calls"], line["completed"], line["prompt_tokens"], line["completion_tokens"]) == (1, 1, len(SECRET), 6)
    assert line["finish"] == "length" and line["cached_tokens"] == 1
    for name in ("seconds", "first_token_seconds", "queue_seconds"):
        assert isinstance(line[name], float | int) and line[name] >= 0, name
    assert SECRET not in json.dumps(line)


async def test_a_line_names_the_adapter_that_computed_its_request(caplog: pytest.LogCaptureFixture) -> None:
    async with open_site(adapters=("sql",)) as site:
        for model in ("sql", "alias:sql"):
            (line,) = await ask(site, caplog, model=model)
            assert line["model"] == "sql" and "model=sql" in str(line["message"])
            caplog.clear()


async def test_prompts_are_logged_only_where_the_operator_asks(caplog: pytest.LogCaptureFixture) -> None:
    async with open_site(log_format="json", log_prompts=True) as site:
        (line,) = await ask(site, caplog)
    assert line["prompts"] == [SECRET]
    with pytest.raises(InvalidRequest, match="log_format json"):
        ServerOptions(log_prompts=True)


async def test_refused_requests_leave_a_line_that_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with open_site() as site:
        site.engine.hold = True
        (line,) = await ask(site, caplog, response_format={"type": SECRET})
        assert (line["status"], line["param"], line["path"]) == (400, "response_format.type", "/v1/completions")
        assert SECRET not in json.dumps(line)
        caplog.clear()
        (line,) = await ask(site, caplog, prompt="x" * 500)
        assert line["status"] == 400
        caplog.clear()
        with caplog.at_level("INFO", logger="branchpoint.serving"):
            await site.http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Timeout": "no"})
        (line,) = lines(caplog)
        assert str(line["request_id"]).startswith("cmpl-") and line["param"] == "X-Request-Timeout"


async def test_no_name_of_a_field_begins_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async with open_site() as site:
        (line,) = await ask(site, caplog, **{"x\nINFO forged: all is well\x1b[2K": 1})
    assert line["status"] == 400 and "\\nINFO forged" in str(line["message"]) and str(line["message"]).isprintable()


def test_a_traceback_stays_on_its_line() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, "f", 1, "went %s", ("wrong",), sys.exc_info())
    record.__dict__.update(fields({"request_id": "ä\n"}))
    line = JsonLines().format(record)
    assert "\n" not in line and json.loads(line)["request_id"] == "ä\n" and "ValueError" in json.loads(line)["exception"]


class Span(msgspec.Struct):
    name: str
    parent: str
    start: int
    attributes: dict[str, object] = {}
    events: list[str] = []
    ended: int = 0

    def set_attributes(self, attributes: Mapping[str, object]) -> None:
        self.attributes |= attributes

    def add_event(self, name: str, timestamp: int) -> None:
        assert self.start <= timestamp
        self.events.append(name)

    def end(self, end_time: int) -> None:
        self.ended = end_time


class Recorder:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.closed = False

    def start(self, name: str, parent: str, start: int) -> Span:
        self.spans.append(Span(name, parent, start))
        return self.spans[-1]

    def close(self) -> None:
        self.closed = True


async def test_each_request_is_a_span_under_its_callers() -> None:
    recorder = Recorder()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with open_site() as site:
        site.gateway.shared.traces = Traces(recorder)
        await site.http.post(
            "/v1/completions", json={"prompt": "hi", "max_tokens": 2, "request_id": "one"}, headers={"traceparent": parent}
        )
        await site.complete(prompt="")
    (span,) = recorder.spans
    assert (span.name, span.parent, span.events) == ("POST /v1/completions", parent, ["first token"])
    assert span.start < span.ended and recorder.closed
    told = span.attributes
    assert told["gen_ai.request.id"] == "one" and told["gen_ai.response.model"] == "fake"
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (2, 2)
    assert {"gen_ai.latency.time_to_first_token", "gen_ai.latency.e2e", "gen_ai.latency.time_in_queue"} <= told.keys()


def test_spans_reach_a_collector_through_the_sdk() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="needs branchpoint[otel]")
    exporting = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    tracing = _Otlp("http://127.0.0.1:9/v1/traces", "smol")
    simple = importlib.import_module("opentelemetry.sdk.trace.export").SimpleSpanProcessor(exporting)
    tracing._provider._active_span_processor._span_processors = (simple,)
    span = tracing.start("POST /x", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", 1_000)
    span.set_attributes({"a": 1})
    span.end(end_time=2_000)
    tracing.close()
    (sent,) = exporting.get_finished_spans()
    assert f"{sent.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c" and sent.parent is not None
    assert (sent.start_time, sent.end_time, sent.attributes["a"]) == (1_000, 2_000, 1)
    assert sent.resource.attributes["service.name"] == "smol"


def test_without_the_sdk_the_option_says_what_to_install() -> None:
    try:
        Traces.to("http://127.0.0.1:9/v1/traces", "smol").close()
    except InvalidRequest as error:
        assert "branchpoint[otel]" in str(error)
    assert Traces.to(None, "smol") is not None
