"""Responses that were told to be kept: in memory, the oldest dropped, each seen by its own caller only.

Filled by the view of /v1/responses; read by later requests that go on from one, and by GET and DELETE.
"""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from branchpoint.runtime.serving.errors import ApiError, clip
from branchpoint.runtime.serving.wire import Json

__all__ = ["ResponseStore", "Stored"]

MAX_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as it was answered, and the conversation up to its end, as chat messages."""

    response: Json
    messages: tuple[Json, ...]


class ResponseStore:
    """At most `most` responses, and at most MAX_BYTES of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, str], tuple[Stored, int]] = OrderedDict()
        self._bytes = 0

    def put(self, owner: str, stored: Stored) -> None:
        """Keep a response; the oldest go where there are too many."""
        size = len(msgspec.json.encode((stored.response, stored.messages)))
        self._kept[owner, str(stored.response["id"])] = stored, size
        self._bytes += size
        while self._kept and (len(self._kept) > self._most or self._bytes > MAX_BYTES):
            _, (_, size) = self._kept.popitem(last=False)
            self._bytes -= size

    def get(self, owner: str, response_id: str, param: str | None = None) -> Stored:
        """The response. Raises ApiError 404 where `owner` has none of this id, or no longer."""
        kept = self._kept.get((owner, response_id))
        if kept is None:
            told = f"There is no response {clip(response_id, 80)!r}: it wasn't stored, or had to make room for others."
            raise ApiError(404, told, param=param)
        return kept[0]

    def drop(self, owner: str, response_id: str) -> None:
        """Forget a response. Raises ApiError 404 as `get`."""
        self.get(owner, response_id)
        _, size = self._kept.pop((owner, response_id))
        self._bytes -= size
