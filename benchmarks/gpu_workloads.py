"""The serving workloads of `benchmarks.gpu`, run on an engine in this thread: token ids, greedy, ends ignored, an empty cache.

The prompts are drawn as those that vLLM was measured with.
"""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu_floors import Served, served
from branchpoint.constrained.spec import Constraint, JsonSchema
from branchpoint.runtime.engine import Engine
from branchpoint.runtime.messages import Call, Delta, Failed
from branchpoint.runtime.sampling import SamplingParams

__all__ = ["Outcome", "Scale", "Workloads"]

SCHEMA = json.dumps({
    "type": "object",
    "properties": {"notes": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["notes"],
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of each workload: requests of W2, W3 and W5, conversations, and by what all lengths are divided."""

    requests: int = 256
    conversations: int = 32
    shrink: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a workload took and made, and what it came to at least."""

    seconds: float
    tokens: int
    least: Served

    @property
    def rate(self) -> float:
        """Output tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class _Request:
    """`cached` tokens of the prompt are computed before, or for another request."""

    prompt: Sequence[int]
    count: int
    constraint: Constraint | None = None
    cached: int = 0


class Workloads:
    """Prompts from a fixed seed for a vocabulary; each method runs one workload on an engine."""

    def __init__(self, vocabulary: int, scale: Scale) -> None:
        rng = random.Random(0)
        self._scale, self._rng, self._high = scale, rng, min(vocabulary, 10_000)
        shrink, many = scale.shrink, scale.requests
        self._mixed = [
            _Request(self._ids(rng.randint(100, 1024) // shrink), rng.randint(100, 512) // shrink) for _ in range(many)
        ]
        self._prefix = self._ids(2048 // shrink)
        length = len(self._prefix)
        self._prefixed = [_Request([*self._prefix, *self._ids(64 // shrink)], 64 // shrink, cached=length) for _ in range(many)]
        self._single = [_Request(self._ids(128 // shrink), 256 // shrink) for _ in range(3)]

    def single(self, engine: Engine) -> Outcome:
        """W1: one stream, its prompt and all, as vLLM's were counted; the best of three."""
        return min((self._run(engine, [request]) for request in self._single), key=lambda outcome: outcome.seconds)

    def mixed(self, engine: Engine) -> Outcome:
        """W2: many requests of mixed lengths at once."""
        engine.flush_cache()
        return self._run(engine, self._mixed)

    def prefixed(self, engine: Engine, *, only_prefill: bool = False) -> Outcome:
        """W3: many requests behind one long prefix; with `only_prefill` they end after a token."""
        engine.flush_cache()
        requests = [replace(request, count=1) for request in self._prefixed] if only_prefill else self._prefixed
        outcome = self._run(engine, requests, shared=len(self._prefix))
        return replace(outcome, least=outcome.least + served([(0, len(self._prefix), 1)]))

    def conversations(self, engine: Engine) -> Outcome:
        """W4: conversations of four turns, each turn all at once, each prompt the whole history."""
        engine.flush_cache()
        histories: list[list[int]] = [[] for _ in range(self._scale.conversations)]
        shrink, total = self._scale.shrink, Outcome(0.0, 0, Served())
        for _ in range(4):
            requests = []
            for history in histories:
                cached = len(history)
                history += self._ids(256 // shrink)
                requests.append(_Request(tuple(history), 128 // shrink, cached=cached))
            outputs: list[list[int]] = []
            turn = self._run(engine, requests, outputs)
            total = Outcome(total.seconds + turn.seconds, total.tokens + turn.tokens, total.least + turn.least)
            for history, output in zip(histories, outputs, strict=True):
                history += output
        return total

    def constrained(self, engine: Engine, *, masked: bool) -> Outcome:
        """W5: half as many requests of one length, under a JSON schema, which has been compiled before, or free."""
        shrink, constraint = self._scale.shrink, JsonSchema(SCHEMA) if masked else None
        self._run(engine, [_Request(self._ids(16), 128 // shrink, constraint)])
        engine.flush_cache()
        rng = random.Random(5)
        prompts = [[rng.randrange(100, self._high) for _ in range(128 // shrink)] for _ in range(self._scale.requests // 2)]
        return self._run(engine, [_Request(prompt, 128 // shrink, constraint) for prompt in prompts])

    def warm_up(self, engine: Engine) -> None:
        """Other requests of mixed lengths, as vLLM had them before it was measured: libraries load what sizes need."""
        rng, shrink = random.Random(1), self._scale.shrink
        lengths = [rng.randint(100, 1024) // shrink for _ in range(self._scale.requests // 4)]
        self._run(engine, [_Request(self._ids(length), max(1, 24 // shrink)) for length in lengths])

    def decoding(self, engine: Engine, batch: int, steps: int) -> None:
        """Prefill `batch` short prompts, then step until each has `steps` tokens: for profiles."""
        self._run(engine, [_Request(self._ids(16), steps) for _ in range(batch)])

    def _ids(self, count: int) -> list[int]:
        return [self._rng.randrange(100, self._high) for _ in range(count)]

    def _run(
        self, engine: Engine, requests: Sequence[_Request], outputs: list[list[int]] | None = None, *, shared: int = 0
    ) -> Outcome:
        """All requests at once, whose first `shared` tokens are the same; their outputs go to `outputs`, in order."""
        texts: dict[str, list[int]] = {str(number): [] for number in range(len(requests))}
        started = time.perf_counter()
        for number, request in enumerate(requests):
            sampling = SamplingParams(temperature=0.0, max_tokens=request.count, ignore_eos=True)
            engine.submit(Call(str(number), tuple(request.prompt), sampling, request.constraint))
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, Delta):
                    texts[event.id] += event.tokens
                elif isinstance(event, Failed):
                    raise RuntimeError(f"Request {event.id} failed: {event.message}")
        seconds = time.perf_counter() - started
        if outputs is not None:
            outputs += texts.values()
        least = served(((each.cached, len(each.prompt) - each.cached, each.count) for each in requests), shared)
        return Outcome(seconds, sum(map(len, texts.values())), least)
