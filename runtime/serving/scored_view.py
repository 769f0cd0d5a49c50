"""The answer to calls that only score or pool: what comes back of each, by its place. Nothing is streamed.

Made by `scores` and `embeddings`, which add the shape of their bodies; driven by `Answer`.
"""

from branchpoint.runtime.messages import Scored
from branchpoint.runtime.serving.answer import EventBatch
from branchpoint.runtime.serving.framing import EVENTS
from branchpoint.runtime.serving.wire import Json

__all__ = ["ScoredView"]


class ScoredView:
    """Keeps what each call of a request scored; `head` begins the body."""

    stream = False
    framing = EVENTS

    def __init__(self, own: str, model: str) -> None:
        self.head: Json = {"id": own, "model": model}
        self._scored = dict[int, Scored]()

    def chunks(self, batch: EventBatch) -> list[object]:
        """Keep the scores."""
        self._scored |= {call: event for call, event in batch if isinstance(event, Scored)}
        return []

    def tail(self) -> list[object]:
        """Nothing: neither scores nor vectors are streamed."""
        return []

    def ordered(self) -> list[Scored]:
        """What came back, in the order of the calls."""
        return [self._scored[place] for place in sorted(self._scored)]

    def usage(self) -> Json:
        """The tokens of all calls together."""
        prompt = sum(scored.usage.prompt_tokens for scored in self._scored.values())
        cached = sum(scored.usage.cached_tokens for scored in self._scored.values())
        return {"prompt_tokens": prompt, "total_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
