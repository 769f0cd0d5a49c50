"""What the views of one reply in parts have in common: events are read once, and each part becomes what the API calls it.

Below `messages_view` and `responses_view`; fed by `answer`.
"""

from abc import ABC, abstractmethod

from branchpoint.runtime.messages import Call, Delta, Event, SampleFinished
from branchpoint.runtime.serving.answer import EventBatch
from branchpoint.runtime.serving.collected import Collected, Sample
from branchpoint.runtime.serving.replies import Reply
from branchpoint.runtime.serving.reply import Part

__all__ = ["ReplyView"]


class ReplyView(ABC):
    """One call of one sample, answered whole or in events. `_open` names the kind of part under way."""

    def __init__(self, call: Call, reply: Reply, *, stream: bool) -> None:
        self.stream = stream
        self._collected = Collected((call,))
        self._reply = reply
        self._open = ""
        self._begun = False

    @property
    def _sample(self) -> Sample:
        """The only one, so far."""
        return self._collected.samples[0][0]

    def chunks(self, batch: EventBatch) -> list[object]:
        """Events for what has come."""
        ready = list[object]()
        if not self._begun:
            self._begun = True
            ready += self._begin()
        for call, event in batch:
            ready += self._take(call, event)
        return ready

    def _take(self, call: int, event: Event) -> list[object]:
        self._collected.add(call, event)
        ready = list[object]()
        if isinstance(event, Delta):
            for part in self._reply.feed(event.text, len(event.tokens)):
                ready += self._part(part)
        elif isinstance(event, SampleFinished):
            for part in self._reply.end():
                ready += self._part(part)
            ready += self._close()
        return ready

    @abstractmethod
    def _begin(self) -> list[object]:
        """What comes before all parts."""

    @abstractmethod
    def _part(self, part: Part) -> list[object]:
        """Events for a part, which may begin a piece of the answer or go on with it."""

    @abstractmethod
    def _close(self) -> list[object]:
        """Events for the end of the piece under way, if there is one."""
