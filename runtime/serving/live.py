"""What runs now, for people who watch: GET /branchpoint/requests. Ids, counts and times of the caller's own requests; no text.

Built on the gateway's list of open requests; the page polls it.
"""

import time

from branchpoint.runtime.serving.exchange import Exchange
from branchpoint.runtime.serving.inflight import prompt_tokens
from branchpoint.runtime.serving.keys import Caller
from branchpoint.runtime.serving.models import Models
from branchpoint.runtime.serving.record import RequestRecord
from branchpoint.runtime.serving.wire import Json

__all__ = ["MOST_LISTED", "live_requests"]

MOST_LISTED = 200
"""Requests that are told one by one: the newest."""


def live_requests(models: Models, caller: Caller) -> Json:
    """The requests in the engines that `caller` may see (its own; an admin's: all), the newest first, and how many there are."""
    seen = sorted(models.seen_by(caller), key=lambda each: -each[0].began)
    return {"object": "list", "total": len(seen), "data": [_told(*each) for each in seen[:MOST_LISTED]]}


def _told(record: RequestRecord, exchange: Exchange) -> Json:
    return {
        "model": record.model,
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
