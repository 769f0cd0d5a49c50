"""How /generate answers: SGLang's objects (streamed text is cumulative, as its clients expect), or the runtime's own events.

Beside `generate`, which parses; both are views for `answer`.
"""

import time

from branchpoint.runtime.messages import Call, Completed, Delta
from branchpoint.runtime.serving.answer import EventBatch
from branchpoint.runtime.serving.collected import Collected, Sample
from branchpoint.runtime.serving.framing import EVENTS, LINES
from branchpoint.runtime.serving.logprobs import finite_event, native_logprobs, native_top_logprobs
from branchpoint.runtime.serving.wire import Json

__all__ = ["EventsView", "GenerateView"]


class EventsView:
    """Every event as it is, but for infinite logprobs, one JSON object a line. The terminal event is the last line."""

    stream = True
    framing = LINES

    def chunks(self, batch: EventBatch) -> list[object]:
        """The events themselves."""
        return [finite_event(event) for _, event in batch]

    def tail(self) -> list[object]:
        """Nothing: the terminal event was the end."""
        return []

    def whole(self) -> object:
        """Never asked for."""
        return {}


class GenerateView:
    """SGLang's `{text, output_ids, meta_info}`: one, or a list where several prompts or samples were asked for.

    In a stream, each object is the sample so far; the last one, with the finish reason, comes when its call has ended, since only
    then all counts are known. What a slow reader has missed is told once.
    """

    framing = EVENTS

    def __init__(self, request_id: str, calls: tuple[Call, ...], *, batch: bool, stream: bool, text: bool) -> None:
        self.stream = stream
        self._id = request_id
        self._calls = calls
        self._collected = Collected(calls)
        self._many = batch or calls[0].sampling.n > 1
        self._text = text
        self._began = time.monotonic()

    def chunks(self, batch: EventBatch) -> list[object]:
        """The samples that the events belong to."""
        grown = dict[tuple[int, int], None]()
        for call, event in batch:
            self._collected.add(call, event)
            if isinstance(event, Delta):
                grown[call, event.index] = None
            elif isinstance(event, Completed):
                grown |= dict.fromkeys((call, index) for index in range(self._calls[call].sampling.n))
        return [self._chunk(call, index) for call, index in grown] if self.stream else []

    def _chunk(self, call: int, index: int) -> Json:
        chunk = self._object(call, self._collected.samples[call][index])
        return chunk | {"index": call * self._calls[call].sampling.n + index} if self._many else chunk

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
            "finish_reason": self._finish(sample) if usage else None,
            "prompt_tokens": len(asked.prompt),
            "completion_tokens": len(sample.tokens),
            "cached_tokens": usage.cached_tokens if usage else 0,
            "reasoning_tokens": 0,
            "weight_version": "default",
            "num_retractions": usage.preemptions if usage else 0,
            "e2e_latency": time.monotonic() - self._began,
            **sample.told(),
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
