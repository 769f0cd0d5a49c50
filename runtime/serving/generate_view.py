"""How /generate answers: SGLang's objects (streamed text is cumulative, as its clients expect), or the runtime's own events.

Beside `generate`, which parses; both are views for `answer`.
"""

import time

from branchpoint.runtime.messages import Call, Delta, Event, SampleFinished
from branchpoint.runtime.serving.collected import Collected, Sample
from branchpoint.runtime.serving.logprobs import native_logprobs, native_top_logprobs
from branchpoint.runtime.serving.wire import Json

__all__ = ["EventsView", "GenerateView"]


class EventsView:
    """Every event as it is, one JSON object a line. The terminal event is the last line."""

    stream = True
    lines = True

    def chunks(self, call: int, event: Event) -> list[object]:
        """The event itself."""
        return [event]

    def tail(self) -> list[object]:
        """Nothing: the terminal event was the end."""
        return []

    def whole(self) -> object:
        """Never asked for."""
        return {}


class GenerateView:
    """SGLang's `{text, output_ids, meta_info}`: one, or a list where several prompts or samples were asked for."""

    lines = False

    def __init__(self, request_id: str, calls: tuple[Call, ...], *, batch: bool, stream: bool, text: bool) -> None:
        self.stream = stream
        self._id = request_id
        self._calls = calls
        self._collected = Collected(calls)
        self._many = batch or calls[0].sampling.n > 1
        self._text = text
        self._began = time.monotonic()

    def chunks(self, call: int, event: Event) -> list[object]:
        """The sample so far, whole, at every event of it."""
        sample = self._collected.add(call, event)
        if not self.stream or sample is None or not isinstance(event, Delta | SampleFinished):
            return []
        if sample.reason is not None and isinstance(event, Delta):
            return []
        chunk = self._object(call, sample)
        if self._many:
            chunk["index"] = call * self._calls[call].sampling.n + event.index
        return [chunk]

    def tail(self) -> list[object]:
        """Nothing more."""
        return []

    def whole(self) -> object:
        """All of it."""
        ready = [self._object(call, sample) for call, samples in enumerate(self._collected.samples) for sample in samples]
        return ready if self._many else ready[0]

    def _object(self, call: int, sample: Sample) -> Json:
        asked = self._calls[call]
        usage = self._collected.usages[call]
        meta: Json = {
            "id": self._id,
            "finish_reason": self._finish(sample),
            "prompt_tokens": len(asked.prompt),
            "completion_tokens": len(sample.tokens),
            "cached_tokens": usage.cached_tokens if usage else 0,
            "reasoning_tokens": 0,
            "weight_version": "default",
            "num_retractions": usage.preemptions if usage else 0,
            "e2e_latency": time.monotonic() - self._began,
        }
        if asked.sampling.logprobs is not None:
            before = self._collected.prompt_logprobs[call]
            meta["input_token_logprobs"] = native_logprobs(before, text=self._text)
            meta["output_token_logprobs"] = native_logprobs(sample.logprobs, text=self._text)
            if asked.sampling.logprobs:
                meta["input_top_logprobs"] = native_top_logprobs(before, text=self._text)
                meta["output_top_logprobs"] = native_top_logprobs(sample.logprobs, text=self._text)
        return {"text": sample.text, "output_ids": list(sample.tokens), "meta_info": meta}

    @staticmethod
    def _finish(sample: Sample) -> Json | None:
        if sample.reason is None:
            return None
        if sample.reason == "length":
            return {"type": "length", "length": len(sample.tokens)}
        return {"type": sample.reason, "matched": sample.stop}
