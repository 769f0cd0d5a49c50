"""The in-process backend: an engine in a thread of its own, for programs and for direct calls.

`Engine` is what users make; programs run on its `backend`, which speaks the executor's protocol. The one module of the
language that knows the engine.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path
from typing import Self, TypeVar, Unpack, overload

import msgspec

from branchpoint.lang.backends.base import Capabilities, GenerateRequest, Message, ScoreRequest, Segment
from branchpoint.lang.backends.direct import Asked, OnePrompt, OutputOptions, Sampling, ask
from branchpoint.lang.backends.generation import Generation
from branchpoint.lang.backends.relay import Relay, waiting
from branchpoint.lang.chat import ChatText, RoleText, Turn
from branchpoint.lang.dispatcher import Dispatched
from branchpoint.lang.errors import BackendError
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.lora.client import AdapterClient
from branchpoint.runtime.messages import Call, Delta, Event, ScoreCall, Scored, Text
from branchpoint.runtime.process import EngineClient, EngineThread, build_engine
from branchpoint.runtime.stats import EngineStats
from branchpoint.runtime.tokenizer import Tokenizer

__all__ = ["Engine", "EngineBackend"]

T = TypeVar("T")

_INLINE_CHARACTERS = 8192  # more text than this is tokenised on a thread, so that the event loop goes on


class EngineBackend(Dispatched):
    """Runs the requests of programs on an engine. Made by `Engine`, and closed with it."""

    capabilities = Capabilities(stretches=True)  # everything

    def __init__(self, client: EngineClient, tokenizer: Tokenizer) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="branchpoint-tokenize")
        self._relay: Relay | None = None
        self._chat = ChatText(self)  # one for all programs

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """See `Backend`."""
        segments, heal = request.segments, request.heal
        prompt = await self._aside(segments, lambda: self.tokenizer.prepare(segments, heal=heal))
        given = (request.sampling, request.constraint, prompt.heal, request.namespace, request.hints)
        call = Call(request.id, prompt.tokens, *given, written=request.written)
        async with aclosing(self.events([call])) as events:
            async for event in events:
                yield event

    async def score(self, request: ScoreRequest) -> Scored:
        """See `Backend`. The unconditional scores are those after the tokenizer's beginning token alone."""
        segments, options = request.segments, request.options
        cut = await self._aside(segments, lambda: self.tokenizer.options(segments, options))
        prompt, continuations, skips = cut.prompt, cut.continuations, cut.skips
        if request.unconditional:
            prompt = (self.tokenizer.beginning,)
            continuations = tuple(tokens[skip:] for tokens, skip in zip(continuations, skips, strict=True))
            skips = (0,) * len(continuations)
        if request.with_end:
            continuations = tuple((*tokens, self.tokenizer.eos_token_ids[0]) for tokens in continuations)
        call = ScoreCall(request.id, prompt, continuations, request.namespace, request.hints)
        async with aclosing(self.events([call])) as events:
            async for event in events:
                if isinstance(event, Scored):
                    rows = tuple(row[skip:] for row, skip in zip(event.logprobs, skips, strict=True))
                    return Scored(event.id, rows, event.usage)
        raise BackendError("The engine ended a score call without its scores.")

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """See `Backend`. Raises InvalidRequest where the model has no chat template, or it refuses the messages."""
        return self.tokenizer.render(messages, add_generation_prompt=add_generation_prompt)

    def writes_whole(self, contents: Sequence[str]) -> bool:
        """See `Writing`. Raises as `render`."""
        return self.tokenizer.writes_whole(contents)

    async def begin(self, turns: Sequence[Turn], role: str, prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""
        return await self._chat.begin(turns, role, prompt)

    async def end(self, turns: Sequence[Turn], prompt: Sequence[Segment] = ()) -> RoleText:
        """See `ChatText`."""
        return await self._chat.end(turns, prompt)

    async def measure(self, segments: Sequence[Segment]) -> tuple[int, int]:
        """See `Measuring`."""
        prompt = await self._aside(segments, lambda: self.tokenizer.prepare(segments, heal=False))
        return len(prompt.tokens), self.client.info.context_length

    def end_program(self, program: str, namespace: str = "") -> None:
        """See `Ending`."""
        self.client.end_program(program, namespace)

    async def flush_cache(self) -> None:
        """Forget all prefixes that no call uses."""
        await asyncio.wrap_future(self.client.flush_cache())

    async def server_info(self) -> dict[str, object]:
        """The model's facts, and the engine's counters."""
        return _info(self.client, await asyncio.wrap_future(self.client.stats()))

    async def close(self) -> None:
        """End the engine; running requests fail."""
        await asyncio.to_thread(self.client.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def events(self, calls: Sequence[Call | ScoreCall]) -> AsyncGenerator[Event, None]:
        """The events of these calls, in the caller's event loop. Raises what failed; leaving early aborts them."""
        if self._relay is None or self._relay.loop is not asyncio.get_running_loop():
            self._relay = Relay(self.client.submit, self.client.abort)
        return self._relay.events(calls)

    async def _aside(self, segments: Sequence[Segment], work: Callable[[], T]) -> T:
        if sum(len(segment.text) for segment in segments) <= _INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class Engine:
    """A model that runs in this process, for programs (`run(backend=engine)`) and for direct calls.

    `model` (`model_path` is its name in SGLang) is a Hugging Face folder, a GGUF file, an installed demo model or `dummy:ARCH`;
    `options` are those of `EngineConfig`, such as `adapters={"name": "folder"}`, which `adapter` chooses from. Close it, or use
    it as a context manager (`with` or `async with`). Raises ModelError where the model can't be loaded, CapacityError where its
    KV doesn't fit, InvalidRequest for an unknown or impossible option.
    """

    def __init__(self, model: str | Path | None = None, *, model_path: str | Path | None = None, **options: object) -> None:
        if model is not None and model_path is not None:
            raise InvalidRequest("model and model_path are one option; give one.", param="model")
        named = model_path if model is None else model
        thread = EngineThread(build_engine(_config("smollm2" if named is None else named, options)))
        self._join(thread, thread.tokenizer)

    @classmethod
    def around(cls, client: EngineClient, tokenizer: Tokenizer) -> Self:
        """An engine of one that is there already, such as an `EngineProcess`; closing the one closes the other."""
        engine = cls.__new__(cls)
        engine._join(client, tokenizer)
        return engine

    def _join(self, client: EngineClient, tokenizer: Tokenizer) -> None:
        self.info = client.info
        self.tokenizer = tokenizer
        self.backend = EngineBackend(client, tokenizer)
        self._client = client

    def as_backend(self) -> EngineBackend:
        """What programs run on."""
        return self.backend

    @overload
    def generate(self, prompt: OnePrompt, sampling: Sampling | None = None, **options: Unpack[OutputOptions]) -> Generation: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], sampling: Sampling | None = None, **options: Unpack[OutputOptions]
    ) -> list[Generation]: ...
    def generate(
        self,
        prompt: OnePrompt | list[str] | list[list[int]],
        sampling: Sampling | None = None,
        **options: Unpack[OutputOptions],
    ) -> Generation | list[Generation]:
        """Generate after `prompt`, or after each of a list of prompts (all at once), and wait for the end.

        Sampling options come as keywords, or all in `sampling`. With `heal` the output may finish the prompt's last token.
        Raises InvalidRequest, CapacityError or EngineDead; what still runs for the other prompts is aborted.
        """
        asked = self._ask(prompt, sampling, options)
        found = asked.collect()
        with closing(waiting(self._client.submit, self._client.abort, asked.calls)) as events:
            for event in events:
                found[event.id].add(event)
        return asked.answer(found)

    @overload
    async def agenerate(
        self, prompt: OnePrompt, sampling: Sampling | None = None, **options: Unpack[OutputOptions]
    ) -> Generation: ...
    @overload
    async def agenerate(
        self, prompt: list[str] | list[list[int]], sampling: Sampling | None = None, **options: Unpack[OutputOptions]
    ) -> list[Generation]: ...
    async def agenerate(
        self,
        prompt: OnePrompt | list[str] | list[list[int]],
        sampling: Sampling | None = None,
        **options: Unpack[OutputOptions],
    ) -> Generation | list[Generation]:
        """As `generate`, in the caller's event loop. Cancelling the task aborts the calls."""
        asked = self._ask(prompt, sampling, options)
        found = asked.collect()
        async with aclosing(self.backend.events(asked.calls)) as events:
            async for event in events:
                found[event.id].add(event)
        return asked.answer(found)

    def stream(self, prompt: OnePrompt, sampling: Sampling | None = None, **options: Unpack[OutputOptions]) -> Iterator[str]:
        """The text after `prompt` as it comes; nothing is taken back later. Closing the iterator aborts the call."""
        return self._pieces(self._ask(prompt, sampling, options).single())

    def astream(
        self, prompt: OnePrompt, sampling: Sampling | None = None, **options: Unpack[OutputOptions]
    ) -> AsyncIterator[str]:
        """As `stream`, for `async for` in the caller's event loop."""
        return self._apieces(self._ask(prompt, sampling, options).single())

    def _ask(self, prompt: object, sampling: Sampling | None, options: OutputOptions) -> Asked:
        return ask(prompt, sampling, options, lambda segments, heal: self.tokenizer.prepare(segments, heal=heal))

    def _pieces(self, asked: Asked) -> Iterator[str]:
        with closing(waiting(self._client.submit, self._client.abort, asked.calls)) as events:
            for event in events:
                if isinstance(event, Delta) and event.text:
                    yield event.text

    async def _apieces(self, asked: Asked) -> AsyncIterator[str]:
        async with aclosing(self.backend.events(asked.calls)) as events:
            async for event in events:
                if isinstance(event, Delta) and event.text:
                    yield event.text

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> tuple[Text, ...]:
        """A conversation as a prompt for `generate`. What looks like a special token inside a message stays text."""
        return self.tokenizer.render_segments(messages, add_generation_prompt=add_generation_prompt)

    def stats(self) -> EngineStats:
        """Where the engine stands, after its current step."""
        return self._client.stats().result()

    def get_server_info(self) -> dict[str, object]:
        """The model's facts, and the engine's counters."""
        return _info(self._client, self.stats())

    def flush_cache(self) -> int:
        """Forget all prefixes that no call uses; the number of pages that are free now and were not before."""
        return self._client.flush_cache().result()

    def adapter(self, name: str) -> Self:
        """This engine with the LoRA adapter of a name, for programs and direct calls; closing it leaves this one open."""
        return self.around(AdapterClient(self._client, name), self.tokenizer)

    def load_adapter(self, name: str, folder: str | Path, *, replace: bool = False) -> None:
        """Read the adapter that PEFT saved in `folder`; with `replace` calls from now on get it in place of another of its name.
        Raises InvalidRequest where it can't be served, or the engine has neither `enable_lora` nor adapters named at the start.
        """
        self._client.load_adapter(name, str(folder), replace=replace).result()

    def unload_adapter(self, name: str) -> None:
        """Take an adapter's name away; what has begun with it goes on. Raises UnknownModel."""
        self._client.unload_adapter(name).result()

    def close(self) -> None:
        """End the engine; what still runs fails. Calling it again does nothing."""
        self.backend.shutdown()

    def shutdown(self) -> None:
        """`close` by its other name."""
        self.close()

    async def aclose(self) -> None:
        """As `close`, in an event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _config(model: str | Path, options: dict[str, object]) -> EngineConfig:
    try:
        return msgspec.convert({"model": str(model), **options}, EngineConfig)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidRequest):
            raise error.__cause__ from None
        known = ", ".join(EngineConfig.__struct_fields__)
        raise InvalidRequest(f"An engine's options are {known}: {error}.") from None


def _info(client: EngineClient, stats: EngineStats) -> dict[str, object]:
    return {**msgspec.structs.asdict(client.info), "internal_states": [msgspec.to_builtins(stats)]}
