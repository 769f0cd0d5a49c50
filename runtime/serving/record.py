"""What one request leaves behind: a log line, and a span where traces are on. Ids, counts and times; no text of its own accord.

Kept by `answer`, which tells it when the first event and the end have come.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from branchpoint.errors import BranchpointError
from branchpoint.runtime.messages import Call, ScoreCall
from branchpoint.runtime.serving.adapters import adapter_of
from branchpoint.runtime.serving.errors import api_error
from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.keys import caller_of
from branchpoint.runtime.serving.logs import fields
from branchpoint.runtime.serving.request_ids import id_of

__all__ = ["RequestRecord", "log_refusal", "record_of"]

logger = logging.getLogger("branchpoint.serving")


@dataclass(slots=True)
class RequestRecord:
    """One request that the engine got. `began` is in seconds since 1970, the others count from there.

    `model` is the name that its answer carries: an adapter's own. `texts` are fields of what it said, for operators who ask.
    """

    request_id: str
    path: str
    key: str
    model: str
    stream: bool
    parent: str
    calls: Sequence[Call | ScoreCall]
    began: float = field(default_factory=time.time)
    first: float | None = None
    total: float = 0.0
    texts: dict[str, object] = field(default_factory=dict)

    def mark_first(self) -> None:
        """The first event has come."""
        if self.first is None:
            self.first = time.time() - self.began

    def end(self) -> None:
        """The request is over."""
        self.total = time.time() - self.began

    def line(self, exchange: Exchange) -> str:
        """For people, in the order in which they look."""
        told = self.fields(exchange)
        shown = {
            "model": told["model"],
            "calls": f"{told['completed']}/{told['calls']}",
            "prompt": told["prompt_tokens"],
            "cached": told["cached_tokens"],
            "completion": told["completion_tokens"],
            "finish": told["finish"],
            "queue": f"{told['queue_seconds']}s",
            "total": f"{told['seconds']}s",
        }
        return " ".join(f"{name}={value}" for name, value in shown.items())

    def fields(self, exchange: Exchange) -> dict[str, object]:
        """For machines. `completed` of `calls` came to their own end; `finish` are the samples' reasons, or `none`."""
        usages = exchange.usages
        return {
            "request_id": self.request_id,
            "path": self.path,
            "key": self.key,
            "model": self.model,
            "stream": self.stream,
            "calls": len(self.calls),
            "completed": len(usages),
            "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "finish": ",".join(sorted(set(exchange.reasons))) or "none",
            "queue_seconds": round(max((usage.queue_seconds for usage in usages), default=0.0), 3),
            "first_token_seconds": None if self.first is None else round(self.first, 3),
            "seconds": round(self.total, 3),
        }


def record_of(scope: Scope, request_id: str, calls: Sequence[Call | ScoreCall], model: str, *, stream: bool) -> RequestRecord:
    """The record of a request that begins now, for `model` or its adapter; `parent` is its `traceparent` header, if any."""
    parent = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"), "")
    name = adapter_of(scope) or model
    return RequestRecord(request_id, scope["path"], caller_of(scope).name, name, stream, parent, calls)


def log_refusal(scope: Scope, error: BranchpointError, request_id: str = "") -> None:
    """One line for a request that the engine never got, without the message: that may quote the request."""
    answer = api_error(error)
    told = {"request_id": request_id or id_of(scope), "path": scope["path"], "status": answer.status, "param": answer.param}
    told["key"] = caller_of(scope).name
    # a field that isn't known has any name at all: no line break of it may begin a line of its own
    shown = " ".join(f"{name}={ascii(str(value))[1:-1]}" for name, value in told.items() if value)
    logger.info("refused: %s", shown, extra=fields(told))
