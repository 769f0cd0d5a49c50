"""The same sessions on an engine in this process, without HTTP: the most that a server of it can reach.

`latency` runs one batch again and again, `throughput` hands the engine everything at once.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Self

from branchpoint.runtime.bench.timing import Timing
from branchpoint.runtime.bench.workload import Session
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.errors import InvalidRequest
from branchpoint.runtime.messages import Call, Completed, Delta, Event, Failed
from branchpoint.runtime.process import EngineClient, EngineThread, build_engine
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["LocalBench"]


class LocalBench:
    """An engine to be measured; a context, which closes it. Raises what loading the model raises."""

    def __init__(self, config: EngineConfig) -> None:
        loaded = build_engine(config)
        self._engine: EngineClient = EngineThread(loaded)
        self._tokenizer = loaded.tokenizer
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._engine.close()

    def latency(self, prompt_tokens: int, output_tokens: int, batch: int, *, warmup: int, iterations: int) -> list[float]:
        """Seconds of each of `iterations` runs of one batch, after `warmup` that aren't counted. Nothing is cached between."""
        seconds = list[float]()
        for number in range(warmup + iterations):
            self._engine.flush_cache().result()
            prompts = [self._prompt(prompt_tokens, number * batch + place) for place in range(batch)]
            began = time.perf_counter()
            self._run([(prompt, output_tokens) for prompt in prompts])
            seconds.append(time.perf_counter() - began)
        return seconds[warmup:]

    def throughput(self, sessions: Sequence[Session]) -> tuple[list[Timing], float]:
        """The timings of all requests, handed over at once, and the seconds for all of them. Sessions have one request each."""
        if any(len(session.asks) > 1 for session in sessions):
            raise InvalidRequest("Conversations need a server: use `bench serve` for the workload `turns`.", param="workload")
        work = [(self._encoded(session), session.asks[0].output_tokens) for session in sessions]
        began = time.perf_counter()
        timings = self._run(work)
        return timings, time.perf_counter() - began

    def _encoded(self, session: Session) -> tuple[int, ...]:
        text = "\n".join(([session.system] if session.system else []) + [session.asks[0].text])
        return tuple(self._tokenizer.encode(text))

    def _prompt(self, tokens: int, number: int) -> tuple[int, ...]:
        """Ids that no other number's prompt begins with."""
        size = self._engine.info.vocabulary_size
        return tuple((number * 7919 + place * 31 + 11) % size for place in range(tokens))

    def _run(self, work: Sequence[tuple[tuple[int, ...], int]]) -> list[Timing]:
        """Each prompt with its number of output tokens; waits for all of them. Raises InvalidRequest where one is refused."""
        begun = [self._begin(prompt, output) for prompt, output in work]
        wait([done for _, done in begun])
        if failed := next((timing.error for timing, _ in begun if timing.error), ""):
            raise InvalidRequest(f"The engine refused a request of the benchmark: {failed}")
        return [timing for timing, _ in begun]

    def _begin(self, prompt: tuple[int, ...], output_tokens: int) -> "tuple[Timing, Future[None]]":
        timing, done = Timing(time.perf_counter()), Future[None]()

        def on_event(event: Event) -> None:
            timing.ended = time.perf_counter()
            if isinstance(event, Delta):
                timing.marks.append(timing.ended)
            elif isinstance(event, Completed):
                usage = event.usage
                timing.prompt_tokens, timing.cached_tokens = usage.prompt_tokens, usage.cached_tokens
                timing.output_tokens = usage.completion_tokens
                done.set_result(None)
            elif isinstance(event, Failed):
                timing.error = event.message
                done.set_result(None)

        self._number += 1
        sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        self._engine.submit(Call(f"bench-{self._number}", prompt, sampling), on_event)
        return timing, done
