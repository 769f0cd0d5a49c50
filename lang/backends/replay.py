"""The backend that plays a recorded run again: `replay(path)` (LANGUAGE B3).

Each request is answered as it was when `Run.save` wrote the recording; what wasn't asked then goes on to another backend, or
fails, saying so. Calls that the program gave up wait until it gives them up again.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import cast

import msgspec

from branchpoint.lang.backends.base import Backend, Capabilities, GenerateRequest, Message, ScoreRequest
from branchpoint.lang.backends.source import BackendLike, backend_of
from branchpoint.lang.chat import ChatText, RoleText, Turn
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.lang.errors import BackendError, ProgramMistake
from branchpoint.lang.recording import VERSION, Call, RecordedRun, generate_key, role_key, score_key
from branchpoint.runtime.messages import Completed, Delta, Event, SampleFinished, Scored, Segment, Usage

__all__ = ["Replayed", "replay"]


def replay(path: str | Path, then: BackendLike | None = None) -> "Replayed":
    """A backend that answers as the run did which `Run.save` wrote to `path`; `then` answers what wasn't asked in that run.

    A run on it begins from the recorded run's seed. Raises ProgramMistake where the file isn't a recording.
    """
    try:
        run = msgspec.json.decode(Path(path).read_bytes(), type=RecordedRun)
    except msgspec.MsgspecError as error:
        raise ProgramMistake(f"{path} isn't a recording that Run.save wrote: {error}.") from None
    if run.version != VERSION:
        raise ProgramMistake(f"{path} is a recording of version {run.version}; this one can play version {VERSION}.")
    return Replayed(run, None if then is None else backend_of(then))


class Replayed(Dispatched):
    """A recorded run as a backend. `asked_then` counts the requests that went on to the other backend."""

    def __init__(self, run: RecordedRun, then: Backend | None = None) -> None:
        self._run = run
        self._then = then
        self._calls: dict[str, deque[Call]] = defaultdict(deque)
        for call in run.calls:
            self._calls[call.key].append(call)
        self._roles = {role.key: role for role in run.roles}
        self._chat = ChatText(then) if then is not None else None
        self.asked_then = 0

    @property
    def seed(self) -> int:
        """The seed of the recorded run."""
        return self._run.seed

    @property
    def capabilities(self) -> Capabilities:
        """Everything but stretches, or what the other backend can do."""
        return self._then.capabilities if self._then is not None else Capabilities(tools=self._run.native_tools)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """See `Backend`."""
        key = generate_key(request.hints.path, request.segments, request.sampling, request.constraint, request.written)
        call = await self._next(key, request.segments)
        if call is None:
            events = self._other().generate(request)
            async with aclosing(events) as stream:  # type: ignore[type-var]  # the backends' own are generators
                async for event in stream:
                    yield event
            return
        for index, sample in enumerate(call.samples):
            yield Delta(request.id, index, sample.text, sample.tokens, sample.logprobs)
            yield SampleFinished(request.id, index, sample.reason, sample.stop, sample.narrowed, len(sample.tokens))
        yield Completed(request.id, call.usage, call.prompt_logprobs)

    async def score(self, request: ScoreRequest) -> Scored:
        """See `Backend`. The unconditional scores are those of the call that was answered just before."""
        key = score_key(request.hints.path, request.segments, request.options)
        if request.unconditional:
            call, key = None, f"{key} unconditional"
            if self._calls.get(key):
                call = self._calls[key].popleft()
                return Scored(request.id, tuple(row or () for row in call.unconditional), Usage())
            return await self._other().score(request)
        call = await self._next(key, request.segments)
        if call is None:
            return await self._other().score(request)
        self._calls[f"{key} unconditional"].append(call)
        rows = call.rows
        if request.with_end:
            rows = tuple((*row, end or 0.0) for row, end in zip(rows, call.ends, strict=True))
        return Scored(request.id, rows, call.usage)

    async def _next(self, key: str, segments: Sequence[Segment]) -> Call | None:
        """The recorded call, None where the other backend is to be asked. Raises BackendError."""
        if not self._calls.get(key):
            if self._then is None:
                end = "".join(segment.text for segment in segments)[-80:]
                raise BackendError(
                    f"The recording of {self._run.program!r} has no call like this one; the program, its arguments or its "
                    f"options have changed since. The prompt ends {end!r}."
                )
            self.asked_then += 1
            return None
        call = self._calls[key].popleft()
        if call.cancelled:
            await asyncio.Event().wait()  # for ever: it is the program that ends it
        if call.failure is not None:
            raise BackendError(f"It failed when it was recorded: {call.failure}")
        return call

    def _other(self) -> Backend:
        assert self._then is not None, "asked only where there is another"
        return self._then

    async def begin(self, turns: Sequence[Turn], role: str, prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""
        return self._role(turns, role, opens=True) or await self._other_chat().begin(turns, role, prompt)

    async def end(self, turns: Sequence[Turn], prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""
        return self._role(turns, cast(str, turns[-1].role), opens=False) or await self._other_chat().end(turns, prompt)

    def _role(self, turns: Sequence[Turn], role: str, *, opens: bool) -> RoleText | None:
        known = self._roles.get(role_key(turns, role, opens=opens))
        return RoleText(known.text, known.rebase) if known is not None else None

    def _other_chat(self) -> ChatText:
        if self._chat is None:
            raise BackendError(
                f"The recording of {self._run.program!r} has no such message; the program or its arguments have changed since."
            )
        return self._chat

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """See `Backend`; only the other backend has a template."""
        if self._then is None:
            raise BackendError("A recording has no chat template.")
        return await self._then.render(messages, add_generation_prompt=add_generation_prompt)
