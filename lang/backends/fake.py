"""A scripted backend: programs run on it without a model, in Branchpoint's tests and in those of its users.

It answers what the script says, in small pieces, honouring `stop`, `max_tokens` and `n`; it keeps every request in `requests`,
and counts reused prompt tokens as a perfect prefix cache would. One character is one token, its id the code point.
"""

import asyncio
import bisect
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from branchpoint.lang.backends.base import Capabilities, GenerateRequest, Message, ScoreRequest
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.lang.errors import BackendError, CallCancelled
from branchpoint.runtime.messages import (
    Completed,
    Delta,
    Event,
    FinishReason,
    SampleFinished,
    Scored,
    Segment,
    TokenLogprob,
    Usage,
)

__all__ = ["Answer", "Fake", "Reply", "Script", "chatml", "prompt_text"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer. `delay` in seconds passes before each piece, `error` is raised after the text.

    `reason` is how it ends where neither a stop nor `max_tokens` ends it sooner. `logprob` is that of every token. The counts
    stand in the usage as given.
    """

    text: str = ""
    delay: float = 0.0
    error: BaseException | None = None
    reason: FinishReason = "stop"
    logprob: float = -0.5
    forced: int = 0
    drafted: int = 0
    accepted: int = 0


Answer = str | Reply | BaseException | Sequence[str]
"""What a script says to one request; a list of texts is one for each of `n` samples."""

Script = (
    str
    | Reply
    | BaseException
    | Sequence[Answer]
    | Mapping[str, Answer | Sequence[Answer]]
    | Callable[[GenerateRequest], Answer | Awaitable[Answer]]
)
"""One answer for all; answers in the order of requests; answers by the end of the prompt; or a function, which may be async."""

Scores = Mapping[str, float | Sequence[float]] | Callable[[ScoreRequest], Sequence[Sequence[float]]]


@dataclass(slots=True)
class _Counter:
    count: int = 0


def prompt_text(request: GenerateRequest | ScoreRequest) -> str:
    """The whole prompt as text."""
    return "".join(segment.text for segment in request.segments)


def chatml(messages: Sequence[Message], add_generation_prompt: bool) -> str:
    """The chat template that a fake has if it isn't given another."""
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return turns + ("<|im_start|>assistant\n" if add_generation_prompt else "")


class Fake(Dispatched):
    """A backend that says what `script` says.

    `scores` gives the log-probability of options: a number for the option, or one for each character; unknown options get -1 a
    character. Or a function of the request. `template` renders chats; None has none. `piece` is the number of characters that
    come at once. A script that has nothing to say fails the request with BackendError.
    """

    def __init__(
        self,
        script: Script = "",
        *,
        scores: Scores | None = None,
        template: Callable[[Sequence[Message], bool], str] | None = chatml,
        capabilities: Capabilities | None = None,
        piece: int = 3,
        context_length: int = 1 << 20,
    ) -> None:
        self._script = script
        self._scores = scores or {}
        self._template = template
        self._capabilities = capabilities or Capabilities(stretches=True)
        self._piece = piece
        self._context_length = context_length
        self._used: dict[str, _Counter] = {}
        self._cache: list[str] = []  # sorted: the longest common prefix is with a neighbour
        self.requests: list[GenerateRequest | ScoreRequest] = []
        self.aborted: list[str] = []
        self.closed = False

    @property
    def capabilities(self) -> Capabilities:
        """As given, else everything."""
        return self._capabilities

    @property
    def prompts(self) -> list[str]:
        """The prompts of all requests so far, as text."""
        return [prompt_text(request) for request in self.requests]

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """Play the answer: pieces of text, the end of each sample, then the counts."""
        self.requests.append(request)
        usage = self._admit(request.segments)
        made = 0
        try:
            whole = request.written is not None and request.written.whole  # nothing more is to be said
            answer = "" if whole else await self._answer(request)
            replies = _replies(answer, request.sampling.n)
            for index, reply in enumerate(replies):
                text, finished = _cut(request, reply, index)
                for start in range(0, len(text), self._piece):
                    await asyncio.sleep(reply.delay)
                    made += len(text[start : start + self._piece])
                    yield _delta(request, index, text[start : start + self._piece], reply.logprob)
                if not text and reply.delay:
                    await asyncio.sleep(reply.delay)
                if reply.error is not None:
                    raise reply.error
                self._remember(prompt_text(request) + text)
                yield finished
        except GeneratorExit:
            self.aborted.append(request.id)
            raise
        except asyncio.CancelledError:
            self.aborted.append(request.id)
            raise CallCancelled(_counted(usage, made, Reply())) from None
        yield Completed(request.id, _counted(usage, made, replies[0]), _prompt_logprobs(request))

    async def score(self, request: ScoreRequest) -> Scored:
        """The scripted log-probabilities, one for each character of each option."""
        self.requests.append(request)
        usage = self._admit(request.segments)
        if callable(self._scores):
            rows = [tuple(row) for row in self._scores(request)]
        else:
            rows = [_scored(self._scores.get(option), option) for option in request.options]
            rows = [(*row, -0.1) if request.with_end else row for row in rows]
        return Scored(request.id, tuple(rows), usage)

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The chat template's text."""
        if self._template is None:
            raise BackendError("This fake has no chat template; use plain text instead of roles.")
        return self._template(messages, add_generation_prompt)

    async def measure(self, segments: Sequence[Segment]) -> tuple[int, int]:
        """Characters of the segments; the context is as given, and nothing is held to it."""
        return sum(len(segment.text) for segment in segments), self._context_length

    async def flush_cache(self) -> None:
        """Forget which prompts were seen."""
        self._cache.clear()

    async def server_info(self) -> dict[str, object]:
        """How many requests there were."""
        return {"model": "fake", "requests": len(self.requests)}

    async def close(self) -> None:
        """Mark as closed."""
        self.closed = True

    def _admit(self, segments: Sequence[Segment]) -> Usage:
        prompt = "".join(segment.text for segment in segments)
        at = bisect.bisect_left(self._cache, prompt)
        cached = max((_common(prompt, seen) for seen in self._cache[max(at - 1, 0) : at + 1]), default=0)
        cached = min(cached, max(len(prompt) - 1, 0))
        self._remember(prompt)
        return Usage(prompt_tokens=len(prompt), cached_tokens=cached, prefilled_tokens=len(prompt) - cached)

    def _remember(self, text: str) -> None:
        at = bisect.bisect_left(self._cache, text)
        if self._cache[at : at + 1] != [text]:
            self._cache.insert(at, text)

    async def _answer(self, request: GenerateRequest) -> Answer:
        script = self._script
        if isinstance(script, str | Reply | BaseException):
            return script
        if callable(script):
            said = script(request)
            return await said if inspect.isawaitable(said) else said
        if isinstance(script, Mapping):
            prompt = prompt_text(request)
            endings = [ending for ending in script if prompt.endswith(ending)]
            if not endings:
                raise BackendError(f"The fake's script has no answer to a prompt that ends {prompt[-60:]!r}.")
            ending = max(endings, key=len)
            answers = script[ending]
            return answers if isinstance(answers, str | Reply | BaseException) else self._next(ending, answers)
        return self._next("", script)

    def _next(self, key: str, answers: Sequence[Answer]) -> Answer:
        used = self._used.setdefault(key, _Counter())
        used.count += 1
        if used.count > len(answers):
            raise BackendError(f"The fake's script has {len(answers)} answers, this is request {used.count}.")
        return answers[used.count - 1]


def _replies(answer: Answer, n: int) -> list[Reply]:
    if isinstance(answer, BaseException):
        return [Reply(error=answer)]
    if isinstance(answer, Reply):
        return [answer] * n
    if isinstance(answer, str):
        return [Reply(answer)] * n
    if len(answer) != n:
        raise BackendError(f"The fake's script gives {len(answer)} samples, {n} were asked for.")
    return [Reply(text) for text in answer]


def _cut(request: GenerateRequest, reply: Reply, index: int) -> tuple[str, SampleFinished]:
    """The text up to the earliest stop and within `max_tokens`, and how it ended."""
    sampling = request.sampling
    text, reason, fired = reply.text, reply.reason, None
    found = [(text.find(stop), stop) for stop in sampling.stop if stop in text]
    if found:
        at, fired = min(found)
        text, reason = text[: at + (len(fired) if sampling.include_stop else 0)], "stop"
    if sampling.max_tokens is not None and len(text) > sampling.max_tokens:
        text, reason, fired = text[: sampling.max_tokens], "length", None
    return text, SampleFinished(request.id, index, reason, fired, completion_tokens=len(text))


def _delta(request: GenerateRequest, index: int, text: str, logprob: float) -> Delta:
    asked = request.sampling.logprobs is not None
    logprobs = tuple(TokenLogprob(ord(char), logprob, char.encode()) for char in text) if asked else ()
    return Delta(request.id, index, text, tuple(map(ord, text)), logprobs)


def _prompt_logprobs(request: GenerateRequest) -> tuple[TokenLogprob, ...]:
    if request.sampling.prompt_logprobs is None:
        return ()
    text = prompt_text(request)
    rows = [TokenLogprob(ord(char), -1.0 if at else None, char.encode()) for at, char in enumerate(text)]
    return tuple(rows[request.sampling.prompt_logprobs_start :])


def _counted(usage: Usage, made: int, reply: Reply) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        prefilled_tokens=usage.prefilled_tokens,
        completion_tokens=made,
        forced_tokens=reply.forced,
        drafted_tokens=reply.drafted,
        accepted_tokens=reply.accepted,
    )


def _scored(given: float | Sequence[float] | None, option: str) -> tuple[float, ...]:
    if given is None:
        return (-1.0,) * len(option)
    if isinstance(given, int | float):
        return (float(given), *(0.0,) * (len(option) - 1))
    return tuple(given)


def _common(left: str, right: str) -> int:
    """Length of the common prefix, by bisection."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if left[:middle] == right[:middle] else (low, middle - 1)
    return low
