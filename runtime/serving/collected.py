"""What came out of one request so far: per call and sample, and the usage that is reported for it.

Fed by the views with events; knows no wire format but OpenAI's usage object.
"""

from dataclasses import dataclass, field

import msgspec

from branchpoint.constrained.spec import Narrowing
from branchpoint.runtime.messages import Call, Completed, Delta, Event, FinishReason, SampleFinished, TokenLogprob, Usage
from branchpoint.runtime.serving.wire import Json

__all__ = ["Collected", "Sample"]


@dataclass(slots=True)
class Sample:
    """One sample's output so far."""

    parts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason | None = None
    stop: str | int | None = None
    narrowed: tuple[Narrowing, ...] = ()
    opened: bool = False

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.parts)

    def told(self) -> Json:
        """What is said of its constraint in a reply: where it was made stricter than asked. Nothing where it is exact."""
        return {"narrowed": list(map(msgspec.to_builtins, self.narrowed))} if self.narrowed else {}


class Collected:
    """Outputs of `calls`, which all have the same number of samples."""

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self.calls = calls
        self.samples = [[Sample() for _ in range(call.sampling.n)] for call in calls]
        self.usages: list[Usage | None] = [None] * len(calls)
        self.prompt_logprobs: list[tuple[TokenLogprob, ...]] = [()] * len(calls)

    def add(self, call: int, event: Event) -> Sample | None:
        """Take an event of the call at this place; the sample it belongs to, None for one of the whole call."""
        if isinstance(event, Delta):
            sample = self.samples[call][event.index]
            sample.parts.append(event.text)
            sample.tokens.extend(event.tokens)
            sample.logprobs.extend(event.logprobs)
            return sample
        if isinstance(event, SampleFinished):
            sample = self.samples[call][event.index]
            sample.reason, sample.stop, sample.narrowed = event.reason, event.stop, event.narrowed
            return sample
        if isinstance(event, Completed):
            self.usages[call] = event.usage
            self.prompt_logprobs[call] = event.prompt_logprobs
        return None

    def usage(self, reasoning_tokens: int = 0) -> Json:
        """OpenAI's usage object: exact for calls that completed, counted from what came for those that still run."""
        prompt = sum(len(call.prompt) for call in self.calls)
        cached = sum(usage.cached_tokens for usage in self.usages if usage)
        drafted, accepted = (
            sum(getattr(usage, name) for usage in self.usages if usage) for name in ("drafted_tokens", "accepted_tokens")
        )
        completion = sum(
            usage.completion_tokens if usage else sum(len(sample.tokens) for sample in samples)
            for usage, samples in zip(self.usages, self.samples, strict=True)
        )
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "reasoning_tokens": reasoning_tokens,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
        }
