"""What an engine's own `generate` gives, collected from the events of its call.

Beside `direct.py`, which is what may be asked; programs have `lang.result.Meta` instead.
"""

from dataclasses import dataclass, field

from branchpoint.lang.errors import BackendError
from branchpoint.lang.result import SampleMeta
from branchpoint.runtime.errors import error_from
from branchpoint.runtime.messages import Completed, Delta, Event, Failed, FinishReason, SampleFinished, TokenLogprob, Usage

__all__ = ["Collected", "Generation", "checked"]


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation. The fields of its first sample are here directly; `samples` has all `n` of them.

    `usage` counts the whole call; `prompt_logprobs` are those that were asked for.
    """

    samples: tuple[SampleMeta, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()

    @property
    def text(self) -> str:
        """The text, without the stop that ended it."""
        return self.samples[0].text

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids of the text."""
        return self.samples[0].tokens

    @property
    def finish_reason(self) -> FinishReason:
        """`stop`, or `length` where it was cut."""
        return self.samples[0].finish_reason

    @property
    def stop(self) -> str | int | None:
        """The stop string or token id that ended it; None for the model's own end token or a length."""
        return self.samples[0].stop

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """For each token, where `logprobs` was asked for."""
        return self.samples[0].logprobs

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class _Sample:
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finished: SampleFinished | None = None


class Collected:
    """Takes the events of one call of `n` samples."""

    def __init__(self, n: int) -> None:
        self._samples = [_Sample() for _ in range(n)]
        self._completed: Completed | None = None

    def add(self, event: Event) -> None:
        """Take one event."""
        match event:
            case Delta():
                sample = self._samples[event.index]
                sample.texts.append(event.text)
                sample.tokens.extend(event.tokens)
                sample.logprobs.extend(event.logprobs)
            case SampleFinished():
                self._samples[event.index].finished = event
            case Completed():
                self._completed = event

    def generation(self) -> Generation:
        """What it amounts to, after the last event."""
        completed = self._completed
        ends = [sample.finished for sample in self._samples]
        if completed is None or None in ends:
            raise BackendError("The engine's events ended before all samples did.")
        samples = tuple(
            SampleMeta(
                "".join(sample.texts), tuple(sample.tokens), ended.reason, ended.stop, tuple(sample.logprobs), ended.narrowed
            )
            for sample, ended in zip(self._samples, ends, strict=True)
            if ended is not None
        )
        return Generation(samples, completed.usage, completed.prompt_logprobs)


def checked(event: Event) -> Event:
    """The event itself. Raises the error that it stands for; a sample that the engine cut fails its call."""
    if isinstance(event, Failed):
        raise error_from(event.kind, event.message, event.param, event.usage)
    if isinstance(event, SampleFinished) and event.reason in ("abort", "error"):
        kind = "aborted" if event.reason == "abort" else "internal"
        raise error_from(kind, f"Sample {event.index} ended early: {event.stop or event.reason}.")
    return event
