"""An engine client that answers as it is told, so that the HTTP side is tested without a model."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from branchpoint.constrained.spec import Narrowing
from branchpoint.errors import BranchpointError
from branchpoint.radix.node import Node
from branchpoint.radix.picture import DumpOptions, dump
from branchpoint.radix.pool import BlockPool
from branchpoint.runtime.errors import EngineDead, InvalidRequest, UnknownModel
from branchpoint.runtime.messages import (
    Call,
    Completed,
    Delta,
    Event,
    Failed,
    ModelInfo,
    SampleFinished,
    ScoreCall,
    Scored,
    TokenLogprob,
    Usage,
)
from branchpoint.runtime.stats import CacheDump, EngineStats

T = TypeVar("T")

VOCABULARY = 300
EOS = 299

INFO = ModelInfo(
    name="fake",
    path="/nowhere",
    architecture="FakeForCausalLM",
    vocabulary_size=VOCABULARY,
    context_length=128,
    num_pages=64,
    page_size=16,
    eos_token_ids=(EOS,),
    sampling_defaults={"temperature": 0.25, "top_p": 0.5},
    hidden_size=4,
)


class FakeEngine:
    """Answers `say`, or `abc…`, at once, a token a delta; holds calls back while `hold`; fails with `failure` (after `late`).

    The first `forced` tokens of `say` are a grammar's. `narrowed` is what its grammars made stricter than asked.
    """

    def __init__(self) -> None:
        self.info = INFO
        self.dead: EngineDead | None = None
        self.watcher: Callable[[EngineDead], None] | None = None
        self.calls: list[Call | ScoreCall] = []
        self.aborted: list[str] = []
        self.ended: list[tuple[str, str]] = []
        self.hold = False
        self.failure: tuple[str, str] | None = None
        self.late = 0
        self.say = ""
        self.forced = 0
        self.narrowed: tuple[Narrowing, ...] = ()
        self.held: list[tuple[Call | ScoreCall, Callable[[Event], None]]] = []
        self.flushed = 0
        self.cached = list[tuple[str, Node]]()
        self.closed = False
        self.adapters: dict[str, str] = {}
        self.within: tuple[str, ...] = ()
        self.unreadable: str | None = None

    def submit(self, call: Call | ScoreCall, on_event: Callable[[Event], None]) -> None:
        self.calls.append(call)
        if self.hold:
            self.held.append((call, on_event))
        else:
            self.answer(call, on_event)

    def answer(self, call: Call | ScoreCall, on_event: Callable[[Event], None]) -> None:
        if self.failure and not self.late:
            on_event(Failed(call.id, *self.failure))
            return
        if isinstance(call, ScoreCall) and call.pooling:
            vector = (3.0, 4.0, 0.0, float(call.prompt[0]))
            on_event(Scored(call.id, (), Usage(prompt_tokens=len(call.prompt), cached_tokens=1), vector))
            return
        if isinstance(call, ScoreCall):
            logprobs = tuple(tuple(-1.0 - place for place in range(len(tokens))) for tokens in call.continuations)
            on_event(Scored(call.id, logprobs, Usage(prompt_tokens=len(call.prompt))))
            return
        sampling = call.sampling
        if self.say:
            self.speak(call, on_event)
            return
        count = 3 if sampling.max_tokens is None else min(sampling.max_tokens, 26)
        for index in range(sampling.n):
            for place in range(count):
                token = 97 + place
                top = tuple((97 + other, -2.0 - other, bytes([97 + other])) for other in range(sampling.logprobs or 0))
                logprob = (TokenLogprob(token, -0.5, bytes([token]), top),) if sampling.logprobs is not None else ()
                on_event(Delta(call.id, index, chr(token), (token,), logprob))
                if self.failure and place + 1 == self.late:
                    on_event(Failed(call.id, *self.failure))
                    return
            reason = "stop" if sampling.max_tokens is None else "length"
            on_event(SampleFinished(call.id, index, reason, narrowed=self.narrowed, completion_tokens=count))
        before = ()
        if sampling.prompt_logprobs is not None:
            before = tuple(
                TokenLogprob(token, -1.0 if place else None, bytes([token])) for place, token in enumerate(call.prompt)
            )
        usage = Usage(prompt_tokens=len(call.prompt), cached_tokens=1, completion_tokens=count * sampling.n)
        on_event(Completed(call.id, usage, before))

    def speak(self, call: Call, on_event: Callable[[Event], None]) -> None:
        """`say` as the output of each sample, cut at max_tokens characters."""
        said = self.say[: call.sampling.max_tokens]
        for index in range(call.sampling.n):
            for place, char in enumerate(said):
                forced = ((0, 1),) if place < self.forced else ()
                on_event(Delta(call.id, index, char, (min(ord(char), VOCABULARY - 1),), forced=forced))
            reason = "stop" if len(said) == len(self.say) else "length"
            on_event(SampleFinished(call.id, index, reason, completion_tokens=len(said)))
        forced = min(self.forced, len(said)) * call.sampling.n
        usage = Usage(len(call.prompt), 1, completion_tokens=len(said) * call.sampling.n, forced_tokens=forced)
        on_event(Completed(call.id, usage))

    def release(self) -> None:
        self.hold = False
        held, self.held = self.held, []
        for call, on_event in held:
            self.answer(call, on_event)

    def abort(self, call_id: str) -> None:
        self.aborted.append(call_id)

    def stats(self) -> "Future[EngineStats]":
        return done(EngineStats(0, 0, 0, 64, 0, 0, 0, 0, 0, 0, Usage()))

    def end_program(self, program: str, namespace: str = "") -> None:
        self.ended.append((namespace, program))

    def dump_cache(self) -> "Future[CacheDump]":
        return done(CacheDump(dump(self.cached, BlockPool(64, 16), None, 0.0, DumpOptions())))

    def flush_cache(self) -> "Future[int]":
        self.flushed += 1
        return done(0)

    def load_adapter(self, name: str, folder: str, *, replace: bool = False, within: tuple[str, ...] = ()) -> "Future[None]":
        self.within = within
        if name in self.adapters and not replace:
            return failed(InvalidRequest(f"An adapter {name!r} is loaded already; unload it first.", param="lora_name"))
        if self.unreadable is not None:
            return failed(InvalidRequest(self.unreadable, param="lora_path"))
        self.adapters[name] = folder
        return done(None)

    def unload_adapter(self, name: str) -> "Future[None]":
        if self.adapters.pop(name, None) is None:
            return failed(UnknownModel(f"No adapter {name!r} is loaded.", param="model"))
        return done(None)

    def on_death(self, callback: Callable[[EngineDead], None]) -> None:
        self.watcher = callback

    def close(self) -> None:
        self.closed = True


def failed(error: BranchpointError) -> "Future[None]":
    future: Future[None] = Future()
    future.set_exception(error)
    return future


def done(value: T) -> "Future[T]":
    future: Future[T] = Future()
    future.set_result(value)
    return future
