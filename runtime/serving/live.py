"""What runs now, for people who watch: GET /branchpoint/requests. Ids, counts and times of the caller's own requests; no text.

Built on the gateway's list of open requests; the page polls it.
"""

import time

from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.gateway import Gateway
from branchpoint.runtime.serving.inflight import prompt_tokens
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.serving.record import RequestRecord
from branchpoint.runtime.serving.wire import Json

__all__ = ["MOST_LISTED", "live_requests"]

MOST_LISTED = 200
"""Requests that are told one by one: the newest."""


def live_requests(gateway: Gateway, caller: Caller) -> Json:
    """The requests in the engine that `caller` may see (its own; an admin's: all), the newest first, and how many there are."""
    seen = gateway.requests.seen_by(caller)
    model = gateway.name
    listed = [_told(record, exchange) | {"model": model} for record, exchange in reversed(seen[-MOST_LISTED:])]
    return {"object": "list", "total": len(seen), "data": listed}


def _told(record: RequestRecord, exchange: Exchange) -> Json:
    return {
        "id": record.request_id,
        "path": record.path,
        "key": record.key,
        "stream": record.stream,
        "phase": "running" if exchange.touched else "waiting",
        "calls": len(record.calls),
        "prompt_tokens": prompt_tokens(record.calls),
        "output_tokens": exchange.output_tokens,
        "seconds": round(time.time() - record.began, 3),
    }
