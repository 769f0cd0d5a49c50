"""What the handlers of one model share: the engine behind, its tokenizer, its names, and the requests in flight.

One per model, made by `Models` before the model is loaded; `life` attaches the engine and moves the state on.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import TypeVar

import msgspec

from branchpoint.errors import BranchpointError
from branchpoint.runtime.client import EngineClient, OnEvent
from branchpoint.runtime.errors import CapacityError, EngineDead, InvalidRequest, Overloaded
from branchpoint.runtime.messages import Call, Event, Ids, ModelInfo, ScoreCall, Segment, Text
from branchpoint.runtime.metric_names import Outcome
from branchpoint.runtime.metrics import Metrics
from branchpoint.runtime.sampling import SamplingParams
from branchpoint.runtime.serving.adapters import ServedAdapters
from branchpoint.runtime.serving.errors import ApiError, api_error, bad_request, clip, named
from branchpoint.runtime.serving.exchange import NO_NAMES, Exchange
from branchpoint.runtime.serving.inflight import InFlight
from branchpoint.runtime.serving.keys import ANYONE, Caller
from branchpoint.runtime.serving.limits import check_amount, check_calls, check_ids, limits_of
from branchpoint.runtime.serving.pulse import Pulse
from branchpoint.runtime.serving.record import RequestRecord
from branchpoint.runtime.serving.shared import Shared
from branchpoint.runtime.stats import CacheDump, EngineStats
from branchpoint.runtime.tokenizer import Prompt, ScoredOptions, Tokenizer

__all__ = ["Gateway", "Loaded", "State", "shutting_down"]

T = TypeVar("T")


class State(Enum):
    """Where the server stands: only READY admits requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can serve. `names` are what clients may call it, the first is what answers carry. `adapters` are those that
    its engine began with, and their folders.
    """

    engine: EngineClient
    tokenizer: Tokenizer
    names: tuple[str, ...]
    longest_token: int
    adapters: Mapping[str, str] = field(default_factory=dict)

    @property
    def info(self) -> ModelInfo:
        """Facts of the model."""
        return self.engine.info

    @property
    def longest(self) -> int:
        """Tokens that one sequence can have: those of the context, or of the KV pool where that is smaller."""
        return min(self.info.context_length, self.info.num_pages * self.info.page_size)


class Gateway:
    """Admits requests to the engine, and knows which are open. Belongs to one event loop.

    `names` are what it will be called, as far as that is known before it is loaded.
    """

    def __init__(self, shared: Shared, names: tuple[str, ...] = ()) -> None:
        self.state = State.LOADING
        self.shared = shared
        self.settings = shared.settings
        self.names = names
        self.adapters = ServedAdapters(shared.settings.lora_dirs)
        self.requests = InFlight(shared.settings.max_queued_tokens)
        self.pulse = Pulse(shared.settings.stuck_seconds)
        self._loaded: Loaded | None = None
        self._metrics: Metrics | None = None
        self._numbers = itertools.count(1)

    def attach(self, loaded: Loaded) -> None:
        """The model is there, perhaps once more: admit requests."""
        self._loaded = loaded
        self.names = loaded.names
        self.adapters.attach(loaded.engine, loaded.adapters)
        if self._metrics is None:
            self._metrics = Metrics(msgspec.structs.replace(loaded.info, name=loaded.names[0]), self.shared.families)
        else:
            self._metrics.restarted()
        self.state = State.READY

    @property
    def loaded(self) -> Loaded:
        """The model. Raises ApiError 503 unless requests are admitted."""
        if self.state is State.READY and self._loaded is not None:
            return self._loaded
        if self.state is State.LOADING:
            raise ApiError(503, "The model is still loading.", retry_after=5)
        raise (
            shutting_down() if self.state is State.DRAINING else ApiError(503, "The engine is gone.", retry_after=1, hang_up=True)
        )

    @property
    def name(self) -> str:
        """What answers call the model; empty where that isn't known before it is loaded."""
        return self.names[0] if self.names else ""

    @property
    def status(self) -> str:
        """The state in one word: that of `State`, or stuck, where the engine has been silent for too long."""
        stuck = self.state is State.READY and self.pulse.stuck(self.loaded.engine.stats)
        return "stuck" if stuck else self.state.value

    @property
    def num_open(self) -> int:
        """Requests in the engine."""
        return len(self.requests)

    def check_model(self, name: str | None) -> str:
        """The name that answers carry: an adapter's own. Raises ApiError 404 where `name` is none of the served ones."""
        names = self.loaded.names
        if name is None or name in names:
            return names[0]
        if adapter := self.adapters.named(name, names):
            return adapter
        served = ", ".join((*names, *self.adapters))
        raise ApiError(404, f"The model {clip(name, 80)!r} does not exist. Served: {served}.", param="model")

    def open(
        self,
        record: RequestRecord,
        params: Mapping[str | None, str] = NO_NAMES,
        caller: Caller = ANYONE,
        adapter: str = "",
    ) -> Exchange:
        """Start the calls of one request of `caller`, in its namespace, with an adapter; `params` as in Exchange.

        Raises ApiError 503 when not ready, 400 where a request of this id is in flight, 429 where the caller or the queue has no
        more room, InvalidRequest for too many samples.
        """
        loaded = self.loaded
        check_amount(record.calls)
        with named(params):
            check_calls(record.calls, self.settings)
        own = tuple(caller.own(call, adapter) for call in record.calls)

        def make(on_first: Callable[[], None], on_exit: Callable[[], None]) -> Exchange:
            number = next(self._numbers)
            return Exchange(self._submit, loaded.engine.abort, own, on_exit, number=number, params=params, on_first=on_first)

        return self.requests.open(caller, record, make)

    async def drain(self, seconds: float) -> None:
        """Admit nothing more and wait for what runs; after `seconds`, end it."""
        self.state = State.DRAINING
        if not await self.requests.idle(seconds):
            self.requests.fail_all(shutting_down())

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work`, which would hold up the event loop, on a thread."""
        return await self.shared.aside(work)

    async def prepare(self, segments: Sequence[Segment], *, heal: bool, param: str, raw: bool = False) -> Prompt:
        """Segments as tokens; in a `raw` prompt, the caller may write special tokens as text.

        Raises InvalidRequest for foreign ids and empty prompts, CapacityError for too long ones.
        """
        tokenizer = self.loaded.tokenizer
        if not any(segment.tokens if isinstance(segment, Ids) else segment.text for segment in segments):
            raise bad_request(f"{param} must not be empty.", param)
        self.check_size(segments, param)

        def tokenise() -> Prompt:
            given = [part for one in segments for part in (tokenizer.raw(one.text) if raw and isinstance(one, Text) else (one,))]
            return tokenizer.prepare(given, heal=heal)

        prompt = await self.aside(tokenise)
        if not prompt.tokens:
            raise bad_request(f"{param} must not be empty.", param)
        self.check_length(len(prompt.tokens), param)
        return prompt

    async def options(
        self, segments: Sequence[Segment], options: Sequence[str], params: tuple[str, str] = ("segments", "options")
    ) -> ScoredOptions:
        """Options as continuations of segments, in tokens; `params` name both in the request. Raises as `prepare` does."""
        tokenizer = self.loaded.tokenizer
        self.check_size(segments, params[0])
        for option in options:
            self.check_size((Text(option),), params[1])
        ready = await self.aside(lambda: tokenizer.options(segments, options))
        longest = max(map(len, ready.continuations))
        self.check_length(len(ready.prompt) + longest, params[0] if len(ready.prompt) > longest else params[1])
        return ready

    async def stats(self) -> EngineStats:
        """Where the engine stands."""
        return await asyncio.wrap_future(self.loaded.engine.stats())

    async def update_metrics(self) -> None:
        """Bring the metrics up to date, while the engine lives. Raises ApiError 503 before there is a model."""
        if self._loaded is None or self._metrics is None:
            raise ApiError(503, "The model is still loading.", retry_after=5)
        with contextlib.suppress(EngineDead):  # what it counted until then still holds
            self._metrics.update(await asyncio.wrap_future(self._loaded.engine.stats()))

    def refused(self, error: BranchpointError) -> None:
        """Count a request that `error` has kept from becoming a call."""
        busy = api_error(error).status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
        if self._metrics is not None:
            kind = CapacityError.kind if isinstance(error, CapacityError) else InvalidRequest.kind
            self._metrics.refused(Overloaded.kind if busy else kind)

    def program(self) -> Callable[[Outcome], None]:
        """Count a program that begins to run in the server; what is returned is told how it ended."""
        assert self._metrics is not None, "programs run only once there is a model"
        return self._metrics.program()

    async def flush_cache(self) -> None:
        """Forget all cached prefixes that no request uses."""
        await asyncio.wrap_future(self.loaded.engine.flush_cache())

    async def dump_cache(self) -> CacheDump:
        """What the radix tree holds."""
        return await asyncio.wrap_future(self.loaded.engine.dump_cache())

    def texts(self, calls: Sequence[Call | ScoreCall]) -> list[str]:
        """The calls' prompts as text."""
        return [self.loaded.tokenizer.decode(call.prompt, skip_special=False) for call in calls]

    def check_size(self, segments: Sequence[Segment], param: str) -> None:
        """Refuse foreign ids, and what is too long whatever its tokens, before the time for tokenising is spent."""
        loaded = self.loaded
        size = 0
        for segment in segments:
            size += -(-len(segment.text.encode()) // loaded.longest_token) if isinstance(segment, Text) else len(segment.tokens)
        self.check_length(size, param, at_least="at least ")
        for segment in segments:
            if isinstance(segment, Ids):
                check_ids(segment.tokens, loaded.info.vocabulary_size, param)

    def check_length(self, tokens: int, param: str, *, at_least: str = "") -> None:
        """Raise CapacityError where a prompt of so many tokens doesn't fit in the context, or in the KV pool."""
        info = self.loaded.info
        most = self.settings.max_prompt_tokens
        if most is not None and tokens > most:
            told = (
                f"This server takes prompts of at most {most} tokens. However, your {param} contains {at_least}{tokens} tokens."
            )
            raise CapacityError(f"{told} Shorten it.", param=param)
        if tokens > self.loaded.longest:
            raise CapacityError(
                f"{limits_of(info)} However, your {param} contains {at_least}{tokens} tokens. Shorten it.", param=param
            )

    def check_output(self, tokens: int, sampling: SamplingParams, param: str) -> None:
        """Raise CapacityError where what `sampling` asks for doesn't fit behind a prompt of so many tokens."""
        info = self.loaded.info
        self.check_length(tokens, param)
        name, wanted = "max_tokens", sampling.max_tokens
        if wanted is None:
            name, wanted = ("min_tokens", sampling.min_tokens) if sampling.min_tokens else ("max_tokens", 1)
        if tokens + wanted > self.loaded.longest:
            asked = f"{tokens + wanted} tokens ({tokens} in {param}, {wanted} for the completion)"
            raise CapacityError(f"{limits_of(info)} However, you requested {asked}. Reduce either.", param=name)

    def room(self, tokens: int) -> int:
        """How many tokens can follow a prompt of `tokens`; at least 1, so that a full prompt is refused as such."""
        return max(1, self.loaded.longest - tokens)

    def _submit(self, call: Call | ScoreCall, on_event: OnEvent) -> None:
        assert self._loaded is not None and self._metrics is not None, "calls are opened only once there is a model"
        counted = self._metrics.watch(call, on_event)

        def seen(event: Event) -> None:  # on the engine's thread
            self.pulse.beat()
            counted(event)

        self._loaded.engine.submit(call, seen)


def shutting_down() -> ApiError:
    """What a request is answered that the server's end cuts off, or that comes after."""
    return ApiError(503, "The server is shutting down.", retry_after=1, hang_up=True)
